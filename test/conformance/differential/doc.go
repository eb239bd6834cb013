// Package differential plays the same edits of workloads to two control planes and compares the objects that their
// controllers make.
//
// Each script is a list of edits that follows from its seed: a workload is created in a namespace of its own and then
// changed. The kinds of scripts take turns, see generators: Deployment, StatefulSet, DaemonSet and Job, the same with
// timers and further policies, StatefulSet with claims, ReplicationController, CronJob, and workloads whose pods a
// ResourceQuota rejects. After each edit, both control planes come to rest, and the normalized objects of both
// namespaces must be equal: specs, owner references, hashes, revisions, conditions, counts and the reasons of events. A
// StatefulSet with the policy OrderedReady must have created and deleted its pods in the same order, unless several may
// be unavailable at once.
//
// No containers run. Simulated nodes report pods as running, ready, succeeded or failed, as their container image
// says, and remove deleted pods. The schedulers of the control planes are not compared here. No volumes exist: the
// test itself binds pods with claims to a node.
package differential
