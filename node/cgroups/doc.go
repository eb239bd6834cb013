// Package cgroups manages the cgroups of pods: their names, limits and directories, on cgroup v1
// and v2, directly or through systemd.
//
//	<root>/kubepods/pod<uid>              Guaranteed
//	<root>/kubepods/burstable/pod<uid>    Burstable
//	<root>/kubepods/besteffort/pod<uid>   BestEffort
//
// With the systemd driver the same tree consists of slices:
// kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod<uid_>.slice. Containers are below
// their pod and belong to the runtime.
//
// The package owns everything below <root>/kubepods except the limits of containers, in every
// mounted hierarchy. On a hybrid host this includes the unified one, because runtimes join it.
// agent/plan decides when a cgroup is created or removed. names.go, limits.go, qos.go and the
// settings in v1.go and v2.go are pure.
//
// CPU. A request of 1000m is 1024 shares. On v2 shares are converted to a weight with the formula
// of runc 1.3.2 and later, 10^(l²/612 + 125·l/612 − 7/34) with l = log2(shares), which maps 2, 1024
// and 262144 shares to 1, 100 and 10000. The older linear formula gives one CPU a weight of 39,
// less than the default of 100 of the host's services. An older runtime still uses it for
// containers within a pod, where only its own values are compared.
//
// Memory, PIDs and huge pages are also limited for the whole pod; CPU and memory only if all
// containers are limited. All pods together (kubepods) are limited to the node's allocatable
// resources, if these are configured.
//
// Memory reservation, if enabled, protects the memory that pods request, on v2: memory.min for
// Guaranteed pods and memory.low for Burstable pods. The Burstable tier gets the sum of its pods as
// memory.low. All pods together get memory.min of the Guaranteed pods and memory.low of both,
// because the kernel limits the protection of a cgroup to that of its parents. (Upstream sets both
// sums as memory.min and no memory.low, so that the memory.low of a Burstable pod does not protect
// it from processes outside kubepods.)
//
// systemd rounds a quota up to hundredths of a CPU. The slice of a pod has the exact quota until
// systemd applies its own again, at the latest on a daemon-reload. The limits of containers belong
// to the runtime.
//
// A missing controller limits nothing and is not an error. A controller that exists but cannot be
// used for a limit of the pod is.
//
// The package keeps in memory what the Burstable pods request, for the shares of their tier, and
// which pods this process has limited. It starts no goroutine. Calls may be repeated after a crash
// at any point.
//
// Invariants, each checked by a test with its number:
//
//	G1 Ensure is idempotent. Remove of a missing cgroup succeeds.
//	G2 Only processes in the pod's own cgroup are killed, and never the agent
//	   itself.
//	G3 After Remove nothing of the pod is left in any hierarchy, whatever its QoS
//	   class is assumed to be.
//	G4 Once this process has written them, the shares of the Burstable tier are
//	   those of the sum of the requests of the known Burstable pods.
//	G5 Exists returns true only for a cgroup that this process has limited.
package cgroups
