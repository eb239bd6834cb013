// Package shutdown ends the pods of a node that goes down: group by group, each with its
// time, and waits until their last status is known.
//
// It owns the one drain of a node: who asks while it is under way waits for the same.
// Who goes when is decided in node/shutdown; pods end by the same wish as for any other
// reason. It never kills anything itself, and what has not ended in its time is left to
// the system.
//
// Goroutines: one for the drain, which ends with it.
package shutdown
