// Package networks attaches pods to additional networks, which the annotation
// k8s.v1.cni.cncf.io/networks requests. It runs the CNI plugins through libcni in the network
// namespace of the sandbox.
//
// It owns a directory below the agent's state directory. The directory contains one file for each
// sandbox with additional networks, ID.json, and libcni's cache in results. Administrators provide
// the network configurations. A copy of each used configuration is stored in the sandbox's file for
// DEL.
//
// Apart from the workers of Check, which waits for them, the package starts no goroutines. It is
// safe for concurrent use, except that calls for the same sandbox must not overlap. Check may run
// at any time.
//
// Invariants:
//
//	S1 Before a plugin runs ADD, the file with everything that DEL needs is on disk.
//	   It is removed when every DEL has succeeded.
//	S2 A sandbox without a file with Done does not have all of its networks.
//	S3 No file in the directory makes New fail.
package networks
