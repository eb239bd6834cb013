// Package crifake is a container runtime in memory. It serves the runtime and
// image services of the CRI as containerd does, to a client in the same process
// (Conn) or on a socket (Serve), and passes the suite that containerd passes
// (berth/cri, conformance_test.go).
//
// It owns sandboxes, containers, images and the processes in them, which are
// steps of the test program berth/test/images/testbox: the same pod does the
// same here and in a real container, as far as the fake knows the step. It can
// be told to fail, to hang, to be away and to forget (Fault, Down, Restart).
//
// It never touches the host (unless Options.Files asks for log and message
// files), and knows no time but the time package's: in a testing/synctest
// bubble with Conn, minutes pass in no time.
//
// Invariants:
//
//	F1 A name (pod or container with its attempt) is held from the beginning of
//	   its creation until it is removed or its creation is rolled back.
//	F2 What a caller got or gave is never shared: messages are copied.
//	F3 Nothing moves without being told: no random choice, IDs count up.
//
// Goroutines: one per running container, per call and per event stream of Conn;
// Close ends them and waits.
package crifake
