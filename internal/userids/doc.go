// Package userids allocates host user and group IDs for pods with a user namespace (hostUsers:
// false).
//
// It owns one file per pod:
//
//	<root>/pods/<uid>/userns    the mapping of the pod, in the kubelet's format
//
// There is no state in memory. A range of IDs is allocated as long as the pod's directory contains
// the file, over restarts and reboots, and is free after the directory was removed, which is after
// the last sandbox of the pod. A pod has 65,536 IDs. They are taken from the range that /etc/subuid
// and /etc/subgid assign to the user kubelet or, if there is none, from the IDs above 65,535, one
// range for each pod that the node may have.
//
// It does not create user namespaces or change owners of files. The runtime creates the namespaces
// and uses ID-mapped mounts.
//
// # Invariants
//
//	U1 No two pods share an ID, and no pod has an ID below 65,536.
//	U2 A pod keeps its range.
package userids
