// Package differential plays the same edits of workloads to two control planes and compares the objects that their
// controllers make.
//
// Each script is a list of edits that follows from its seed: a Deployment, StatefulSet, DaemonSet or Job is created
// in a namespace of its own and then changed. After each edit, both control planes come to rest, and the
// normalized objects of both namespaces must be equal: specs, owner references, hashes, revisions, conditions, counts
// and the reasons of events. A StatefulSet with the policy OrderedReady must have created and deleted its pods in the
// same order.
//
// No containers run. Simulated nodes report pods as running, ready, succeeded or failed, as their container image
// says, and remove deleted pods. The schedulers of the control planes are not compared here.
package differential
