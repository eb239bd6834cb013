// Package criconfig translates a pod's spec into the sandbox and container configuration of the
// Container Runtime Interface (CRI), and parses the labels and annotations of runtime objects back
// into what a restarted agent needs.
//
// It is pure: the same arguments give the same result, and it reads no clock, file, lock, log or
// global variable. A Node has all facts about the host. Everything else comes with the setup of the
// action in package plan.
//
// It never decides whether or when something is created. It never reads a volume, an image or an
// API object, and never calls the runtime.
//
// Invariants, each checked by a test that mentions its number:
//
//	C1 The pod, the container and the setup are never modified.
//	C2 No pod causes a panic. A result without an error holds only strings that can be
//	   sent over gRPC (UTF-8, and no NUL where the kernel reads them).
//	C3 ParseSandbox and ParseContainer return what Sandbox and Container wrote.
//	C4 An object without berth's owner label of a known version is not owned by berth.
//	C5 No label or annotation of the pod can forge one of berth's.
//	C6 Sandbox and Container agree on the namespaces of the pod.
package criconfig
