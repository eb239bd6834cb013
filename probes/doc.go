// Package probes runs the startup, readiness and liveness probes of containers
// and tells what they add up to.
//
// It is told which probes are wanted (Watch), runs each when it is due, counts
// its results against its thresholds, and tells a pod's worker whenever the sum
// has changed. It decides nothing about containers: that a dead one is killed is
// a decision of agent/plan.
//
//	threshold.go  PURE: what a result means, and when the probe is due again
//	schedule.go   who is due next
//	probes.go     Run: the owner of all of it
//	exec.go, http.go, tcp.go, grpc.go   one kind each
//
// # When a probe runs
//
//	initialDelaySeconds after the start ──► at once ──► 50, 100, 200 ms … (not exec)
//	      ──first success──► every periodSeconds, at a phase of its own
//
// # Goroutines
//
//	Probes.Run   owns everything below the line of Probes; takes mail; ends with
//	             its context when all probes under way have ended
//	a probe      one per probe under way, never more than its kind may have; its
//	             end is mail. A probe that waits for its time has none.
//
// # Invariants
//
//	P1 A failure counts only when a whole period has passed since the probe's
//	   first run was due, and at most once per period: nobody is given up sooner
//	   than the spec says, and nobody later than the slowest kubelet would.
//	P2 A timeout begins when the probe is really made. A probe that waited for its
//	   turn, or during which this process stood still, is never held against the
//	   pod.
//	P3 Two probes of one container and kind are never under way at once.
//	P4 What has been told changes only when a probe has been made.
package probes
