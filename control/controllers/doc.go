// Package controllers keeps the cluster's objects true to each other: one file
// per controller, each with a name by which it can be turned off.
//
// A controller is told by watches that something changed, and for one key at a
// time it looks at the objects as they are and does what is missing. It may be
// told twice, late or for nothing: looking is all that counts. What it does it
// does through the API like any client, so a second one beside it, or another
// implementation of it, does no harm.
//
// Goroutines: Run starts the workers of every controller that is on, and
// returns when all have ended. Nothing else starts one, but for the calls of a
// batch, which are made at once and waited for.
package controllers
