// Package userids allots to each pod with users of its own (hostUsers: false)
// the user and group IDs of the host that these users are.
//
// It owns one file per such pod:
//
//	<root>/pods/<uid>/userns    the pod's mapping, in the kubelet's form
//
// and nothing in memory: a run of IDs is taken for as long as the pod's
// directory has the file, over restarts and reboots, and is free when the
// directory is gone, which is after the pod's last sandbox. Runs are 65,536 IDs
// long and lie in the range that /etc/subuid and /etc/subgid give to the user
// kubelet, or, where they name none, above the first 65,536, one for each pod
// that the node may have.
//
// It never makes a user namespace or changes the owner of a file: the runtime
// does the one and maps mounts instead of the other.
//
// Invariants:
//
//	U1 No two pods have an ID in common, and none has one below 65,536.
//	U2 A pod that was given a run gets the same one each time.
package userids
