// Package probes runs the startup, readiness and liveness probes of containers and reports their
// results.
//
// Watch sets the desired probes of a pod. The Manager runs each probe when it is due, counts its
// results against its thresholds, and notifies the pod worker when the outcome changes. It makes no
// decisions about containers: agent/plan decides whether a container with a failed liveness probe
// is killed.
//
//	threshold.go  PURE: the probe state, which counts results and schedules the next run
//	schedule.go   the schedule, the worker pools, the detection of pauses
//	probes.go     Run: the owner of all state
//	exec.go, http.go, grpc.go, runner.go (TCP)   the probe handlers
//
// # When a probe runs
//
//	initialDelaySeconds after the start ──► at once ──► 50, 100, 200 ms … (not exec)
//	      ──first success──► every periodSeconds, at a phase of its own
//
// # Goroutines
//
//	Manager.Run  owns the fields of Manager below the line; receives messages;
//	             ends with its context when all running probes have ended
//	a probe run  one per running probe, limited for each handler type; sends a
//	             message when it ends. A waiting probe has no goroutine.
//
// # Invariants
//
//	P1 A failure counts only after a whole period since the probe's first run was
//	   due, and at most once per period. A container is therefore never given up
//	   earlier than its spec says, nor later than the slowest kubelet would.
//	P2 A timeout starts when the probe actually runs. Waiting for a worker, or a
//	   pause of this process, never counts against the pod.
//	P3 Two probes of the same type and container never run at the same time.
//	P4 A reported result changes only when a probe has run.
package probes
