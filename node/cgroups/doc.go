// Package cgroups keeps the pods' cgroups: their names, their limits, and the
// directories that carry both, on cgroup v2 and v1, alone or through systemd.
//
//	<root>/kubepods/pod<uid>              Guaranteed
//	<root>/kubepods/burstable/pod<uid>    Burstable
//	<root>/kubepods/besteffort/pod<uid>   BestEffort
//
// With the systemd driver the same tree is made of slices:
// kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod<uid_>.slice.
// Containers lie below their pod and belong to the runtime.
//
// It owns everything below <root>/kubepods but the containers' own limits, in
// every hierarchy that is mounted (on a hybrid host the unified one too,
// because runtimes join it). When a cgroup is made or removed is decided in
// agent/plan. names.go, limits.go, qos.go and the settings in v1.go and v2.go
// are pure.
//
// CPU. A request of 1000m is 1024 shares. On v2 shares become a weight by the
// curve of runc 1.3.2 and later, 10^(l²/612 + 125·l/612 − 7/34) with
// l = log2(shares), which takes 2, 1024 and 262144 shares to 1, 100 and 10000.
// The older straight line gives one CPU a weight of 39, less than the 100 that
// any service of the host has without asking. An older runtime still uses the
// line for containers within a pod, where only its own values are compared.
//
// Memory, pids and huge pages are limited for the pod as a whole too; CPU and
// memory only where every container is limited. All pods together are limited to
// what the node can give them (kubepods), where it was said what that is.
//
// Memory that pods request is kept for them where that was asked for, on v2: memory.min
// of a Guaranteed pod, memory.low of a Burstable one; of the Burstable tier the sum, and
// of all pods memory.min of the Guaranteed and memory.low of both. The kernel lets no
// cgroup keep more than those above it. (Upstream gives all pods both sums as memory.min
// and no memory.low, with which a Burstable pod's protects from nobody outside.)
//
// systemd keeps a quota in whole hundredths of a CPU, rounded up. A pod's slice
// has the exact one until systemd next applies its own, on a daemon-reload at
// the latest; containers' own limits are the runtime's.
//
// A controller that the host lacks limits nothing and is no error. One that
// the host has and that cannot be used for a limit which the pod asks for is.
//
// The package keeps in memory what the Burstable pods request, for their tier's
// shares, and which pods this process has limited. It starts no goroutine; calls may be repeated after a
// crash at any point.
//
// Invariants, each checked by a test that bears its number:
//
//	G1 Ensure twice is Ensure once; Remove of what is gone succeeds.
//	G2 No process is killed that is not in the pod's own cgroup, and never
//	   the agent itself.
//	G3 After Remove nothing of the pod is left in any hierarchy, whatever its
//	   class is believed to be.
//	G4 Once this process has written it, the Burstable tier's share is that of
//	   the sum of what the Burstable pods known to it request.
//	G5 Exists is true only of a cgroup to which this process gave its limits.
package cgroups
