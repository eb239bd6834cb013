// Package install puts a program of berth onto a host as a systemd service, and
// takes it away again.
//
// What is to be done is decided by Plan and Removal, pure functions from what is
// wanted and what was seen of the host to a list of steps; Look sees and Do
// does, and neither chooses. A step says in one sentence what it does.
//
// It never ends a pod and knows nothing of pods: who takes away an agent gives
// that as a step of its own.
//
// Invariants, each checked by a test of the same name:
//
//	I1 What is as it should be is left alone: a second installation has nothing
//	   to do. What runs counts too: a program or a unit that was swapped without
//	   a restart is not as it should be.
//	I2 A configuration that is there is never changed.
//	I3 A program and a unit are swapped in one step: whoever looks finds the old
//	   one or the new one, and a program that runs goes on with its own.
//	I4 Nothing is removed through a mount.
package install
