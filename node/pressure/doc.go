// Package pressure decides when a node is under resource pressure and ranks the pods for eviction.
//
// It is pure: it maps a Reading of the node's signals and the previous State to the pressures of
// the node and the thresholds that require reclaiming. Rank orders pods for eviction, and Message
// formats the eviction message. Package node reads the signals, and agent/eviction acts.
//
// Invariants, each with a test:
//
//	P1 A pressure starts with the reading that crosses its threshold, and lasts
//	   at least for the transition period after the last such reading.
//	P2 A soft threshold requires reclaiming only after it was met without a break
//	   for its grace period.
//	P3 Reclaiming continues until the minimum reclaim is available, too.
//	P4 Memory pressure requires that both sources agree, unless configured otherwise.
//	P5 Before RecheckAt the evaluation changes only with a new reading.
//	P6 An unreadable signal changes nothing: it neither starts nor ends a pressure.
//	P7 The ranking agrees with upstream's order. The caller passes no critical pods.
package pressure
