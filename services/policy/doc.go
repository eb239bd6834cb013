// Package policy enforces NetworkPolicies on the pods of a node.
//
// A Store holds the policies, the pods and namespaces of the cluster, and the pods of the node with
// their addresses. It computes the ruleset with the packages selection and rules. An Enforcer writes
// the ruleset to the nftables table "inet berth-policy" of its network namespace, in transactions of
// what has changed. It changes no other table.
//
// An agent uses it in this order. It feeds the Store from its sources. When a sandbox has addresses, it
// calls SetLocalPod and then WaitInstalled before it starts containers. When the sandbox is gone, it
// calls DeleteLocalPod. After its own start, it calls SetLocalPod for the pods that are running. A
// Checkpoint keeps the input in the agent's local store for a boot without the API server.
//
// Run is one goroutine, with another one while it is subscribed to changes of tables. All methods are
// safe for concurrent use. The rules stay in place when Run returns.
//
// Invariants:
//
//	P1 Without policies, and when switched off, there is no table.
//	P2 Before the store is synced, the kernel is not changed.
//	P3 Each transaction takes effect as a whole. A restart writes nothing if the table has the ruleset,
//	   and otherwise replaces it in one transaction that keeps the counters.
//	P4 WaitInstalled returns after the rules of the pod's present addresses and labels are in place.
//	P5 Traffic between the host itself and its pods is not restricted.
package policy
