// Package validation says, for every kind but pods, what the control server fills in
// where an object is silent, what it refuses with the path of the field, and
// what must not change once an object exists. Pods and the templates of pods are
// judged by podspec, which the node agent shares.
//
// It is pure and owns nothing: a rule sees the object, and for a change the one
// before, and nothing else. Expressions that choose devices are compiled by
// upstream's library, which keeps its compiler once made; what it answers depends
// on the expression alone. What needs to know of other objects (quota, names in
// use, who asks) is admission's.
//
// Invariants:
//
//	R1 Only Default and Prepare functions change their object.
//	R2 Default is idempotent and overwrites nothing that was set.
//	R3 No rule panics, whatever object the decoder made.
//	R4 Errors hold no value of a Secret.
package validation
