// Package volumes manages the directories and volumes of pods on the host.
//
// It owns the pods' directories below <root>/pods that have its mark, and their directories below the
// log directory:
//
//	<root>/pods/<uid>/volumes/kubernetes.io~<kind>/<volume>        volume, mounted by containers
//	<root>/pods/<uid>/plugins/kubernetes.io~<kind>/<volume>/ready  marker with the version of the content
//	<root>/pods/<uid>/volume-subpaths/<volume>/<container>/<n>     bind mounts of subPaths
//	<root>/pods/<uid>/containers/<container>/<attempt>             termination messages
//	<root>/pods/<uid>/etc-hosts                                    the pod's /etc/hosts
//	<root>/pods/<uid>/.berth                                       mark: berth created the directory
//	<root>/pods/.new-<uid>                                         being created, contains only the mark
//	<root>/pods/<uid>/.trash, <root>/pods/.trash-<uid>             being deleted
//	<logs>/<namespace>_<name>_<uid>/<container>                    logs
//
// This is the kubelet's layout, because drivers and log shippers rely on it. Package content, which
// is pure, decides what a volume contains. agent/plan decides when it is mounted, updated or
// unmounted.
//
// The package has no state in memory and starts no goroutine. Each call reads the state of the host
// and may be repeated after a crash at any point. Mount points are detected with statx, so only
// EnsureSharedMount parses the mount table. Calls for different pods, and for different volumes of
// one pod, may run concurrently. It requires Linux 5.8.
//
// Invariants:
//
//	V1 No path below a pod's directory is followed through a symbolic link to
//	   outside of its volume.
//	V2 Deletion never crosses into another file system or mount: anything mounted
//	   below is unmounted, never emptied, and stays mounted elsewhere.
//	V3 A volume counts as set up only if its marker says so, and, if it needs a
//	   mount or was last set up before a reboot, if the host agrees.
//	V4 A reader of a projected volume sees either the old or the new content.
//	V5 The content of secrets is on tmpfs only and never in an error.
//	V6 A pod directory without the mark belongs to another program, such as the
//	   kubelet. It is neither read nor changed, and neither are its logs.
package volumes
