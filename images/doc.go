// Package images pulls container images, removes unused ones, and controls which pods may use them.
//
// It owns the pulls in progress, their queue and rate, the matching of pull secrets to registries,
// and the usage records of the image garbage collection. It does not cache which image a name
// refers to, because tags move. It calls the runtime's image service over CRI. It also owns the
// records of pulls, in the kubelet's format, which ensure that an image that was pulled with the
// credentials of one pod is not available to a pod without them.
//
// It never decides whether to pull: package agent/plan decides about pull policies (Always,
// IfNotPresent, Never) and back-off. It never retries and never logs: errors are returned, mapped
// once to a *plan.Error.
//
// Goroutines: one per pull and per status call to the runtime, owned by Manager, and Close waits
// for them. RunGC runs on the caller's goroutine.
//
// Invariants:
//
//  1. At most one pull per image name and credentials is in progress, regardless of the number of
//     waiters. Pulls with different credentials are never shared: a pod does not get an image because
//     another pod has access to it.
//  2. A waiter that cancels does not affect the others. A pull without waiters is canceled.
//  3. At most MaxParallel pulls run, and they start at most at the rate QPS. The next pull is the one
//     for the pod with the highest priority, then the oldest one. A pull that does not fit on the disk
//     waits for space without blocking the pulls behind it. Pulls for critical pods do not wait for
//     space.
//  4. No error, warning or progress contains the content of a secret.
//  5. No image is removed that is in use, pinned, being pulled or kept by name. If requested, images
//     that this node did not pull are kept too.
//  6. An image is present only for pods that may use it. A pod that has to prove its access and cannot
//     gets the same result as for an image that is not on the node. If it is unknown who may use an
//     image, after a crash or with a damaged record, access is not proven.
//
// Libraries: golang.org/x/time/rate is the token bucket of the pull limiter, and
// golang.org/x/sync/singleflight shares status calls. Pulls are not shared by singleflight, because
// it has no notion of waiters: it can neither cancel a call when the last waiter leaves, nor make a
// new caller wait for the end of a canceled call instead of receiving its error, nor raise the
// priority of the shared call. Running the pull in a detached context would keep downloading images
// that no pod needs. inflight.go implements these rules.
//
// keyring.go and gc_policy.go are pure: no clock, file, lock or global variable.
package images
