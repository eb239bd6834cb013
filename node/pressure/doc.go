// Package pressure decides when a node is short of something, who must go for it
// and what they are told.
//
// It is pure: a Reading of the node's signals goes in, and with what was true
// before (State) comes out which pressures the node is under and which thresholds
// ask for something to be done. Rank orders pods, Message is for the one that goes.
// It reads nothing, waits for nothing and ends nothing: package node reads the
// signals, agent/eviction acts.
//
// Invariants, each with a test of its name:
//
//	P1 A pressure begins with the look that finds its threshold crossed, and lasts
//	   at least for the transition period after the last such look.
//	P2 A soft threshold asks for nothing before its grace is over without a break.
//	P3 What asks for something to be done does so until the minimum reclaim is
//	   there too.
//	P4 Memory is short only if both of its sources say so, unless one is to do.
//	P5 Time alone changes nothing before Wake.
//	P6 A signal that cannot be read changes nothing: no pressure begins or ends by it.
//	P7 Nobody is ranked before who upstream's order has before them; critical pods
//	   are not ranked.
package pressure
