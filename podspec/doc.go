// Package podspec is what can be said about a pod from its object alone: its
// defaults, whether it is valid, which of its fields berth does not honour yet,
// its quality of service, what it requests, what it refers to.
//
// It owns no state and reads nothing but its arguments: no clock, file, lock,
// log or network. Agent, admission and control server share it, so that the
// same pod means the same everywhere. It never decides what happens to a pod.
//
// SetDefaults comes first: Validate and all questions expect a defaulted pod.
//
// Invariants:
//
//	P1 Only the SetDefaults functions change their argument; a pod that is
//	   asked about may be shared.
//	P2 SetDefaults is idempotent, and overwrites nothing that was set.
//	P3 No function panics, whatever object the decoder made.
//	P4 Errors name the field by its path in the manifest; they never hold the
//	   value of a Secret.
package podspec
