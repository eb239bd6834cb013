// Package criconfig translates a pod's spec into what the container runtime
// interface (CRI) takes: the sandbox's and the containers' configuration, and
// back from the labels and annotations on runtime objects to what a restarted
// agent must know.
//
// It is pure: the same arguments give the same result, and it reads no clock,
// file, lock, log or global. Everything about the host comes in as a Node, all
// else with the setup that plan hands to the action.
//
// It never decides whether or when something is made, never reads a volume, an
// image or an object of the API, and never talks to the runtime.
//
// Invariants, each checked by a test that bears its number:
//
//	C1 The pod, the container and the setup are never changed.
//	C2 No pod, however strange, makes it panic; what it returns without an error
//	   holds only strings that can go over the wire (UTF-8, and no NUL in what
//	   the kernel will see).
//	C3 Parse undoes make: ParseSandbox and ParseContainer give back what Sandbox
//	   and Container wrote.
//	C4 An object without berth's owner label of a known version is not ours.
//	C5 No annotation or label of the pod can forge one of ours.
//	C6 Sandbox and Container agree on the namespaces of the pod.
package criconfig
