// Package images brings container images onto the node and takes them away
// again when they are no longer wanted.
//
// It owns the pulls that are under way, their queue, the pull rate, the matching
// of pull secrets to registries, and the records by which unused images are
// removed. It remembers of no name which image it stands for: tags move. It drives the runtime's image
// service over CRI. It also owns what is written down of pulls, in the kubelet's
// files, by which an image that was pulled with one pod's credentials is not
// given to a pod without them.
//
// It never decides whether to pull: policies (Always, IfNotPresent, Never) and
// back-off are decided in agent/plan. It never retries, and it never logs: what
// goes wrong is returned, mapped once to a *plan.Error.
//
// Goroutines: one per pull and per question to the runtime, owned by Images,
// waited for by Close; and RunGC, owned by whoever calls it.
//
// Invariants:
//
//  1. At most one pull per image name and credentials is under way, however many
//     ask. Pulls with different credentials are never shared: who may not have an
//     image does not get it because somebody else may.
//  2. Who leaves early disturbs nobody; a pull that nobody waits for any more is
//     called off.
//  3. At most MaxParallel pulls run, and they begin at most at the rate QPS. Who
//     goes next is the one asked for by the pod of the highest priority, then the
//     oldest. One that does not fit on the disk waits until there is room, and holds
//     up nobody behind it; those of critical pods do not wait for room.
//  4. No error, warning or progress carries the content of a secret.
//  5. Nothing that is in use, pinned, being pulled or kept by name is removed, nor,
//     where that is asked for, what others than this node's pulls have brought.
//  6. An image that is present is present only to pods that may use it: where they
//     must prove that and cannot, they are told what they would be told of an
//     image that is not there. What is not known for sure, after a crash or with a
//     torn record, counts as not proven.
//
// name.go, keyring.go and collect.go are pure: no clock, file, lock or global.
package images
