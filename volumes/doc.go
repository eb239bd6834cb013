// Package volumes keeps a pod's directories and volumes on the host.
//
// It owns <root>/pods and the pods' directories under the log directory:
//
//	<root>/pods/<uid>/volumes/kubernetes.io~<kind>/<volume>        what containers mount
//	<root>/pods/<uid>/plugins/kubernetes.io~<kind>/<volume>/ready  that it is set up, with which version
//	<root>/pods/<uid>/volume-subpaths/<volume>/<container>/<n>     bind mounts of sub-paths
//	<root>/pods/<uid>/containers/<container>/<attempt>             termination messages
//	<root>/pods/<uid>/etc-hosts                                    the pod's /etc/hosts
//	<root>/pods/<uid>/.trash, <root>/pods/.trash-<uid>             what is being deleted
//	<logs>/<namespace>_<name>_<uid>/<container>                    logs
//
// The layout is the kubelet's, because drivers and log shippers know it. What
// a volume contains is decided in package content, which is pure; when it is
// mounted, projected or taken away is decided in agent/plan.
//
// The package keeps nothing in memory, starts no goroutine and has no loop:
// each call reads the truth from the host (statx tells mount points, so the
// mount table is never parsed) and may be repeated after a crash at any point.
// Calls for different pods, and for different volumes of one pod, may run at
// the same time. It needs Linux 5.8.
//
// Invariants:
//
//	V1 No path below a pod's directory is followed through a symbolic link to
//	   outside of the volume it lies in.
//	V2 Deleting never crosses into another file system or mount: what is found
//	   mounted is unmounted, never emptied, and stays mounted elsewhere.
//	V3 A volume counts as set up only when its marker says so, and, if it needs
//	   a mount or was last set up before a reboot, the host agrees.
//	V4 A reader of a projected volume sees the old content or the new one.
//	V5 Content of secrets lies on tmpfs only and is in no error.
package volumes
