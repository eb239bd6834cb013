// Package crifake is an in-memory container runtime. It serves the runtime and image services of
// the CRI as containerd does, to a client in the same process (Conn) or on a socket (Serve), and
// passes the same conformance suite as containerd (berth/cri, conformance_test.go).
//
// It owns sandboxes, containers, images and the processes in them. A process executes steps of the
// test program berth/test/images/testbox, so the same pod behaves the same as in a real container,
// as far as the fake implements the step. Faults, outages and restarts can be injected (Fault,
// Down, Restart).
//
// It never touches the host, unless Options.WriteFiles enables log and message files. Its only
// clock is package time: with Conn in a testing/synctest bubble, minutes pass instantly.
//
// Invariants:
//
//	F1 A name (pod or container with its attempt) is reserved from the start of its
//	   creation until it is removed or its creation is rolled back.
//	F2 Messages are copied, never shared with the caller.
//	F3 The runtime is deterministic: no random choices, IDs are sequential.
//
// Goroutines: one per running container, per call and per event stream of Conn. Close ends them and
// waits.
package crifake
