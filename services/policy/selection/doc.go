// Package selection finds the pods that NetworkPolicies select as peers. It is the first half of
// network policy enforcement: package berth/services/policy/rules turns its results into rules.
//
// A Policy is the compact form of a NetworkPolicy. Each of its peers that selects pods is a group,
// identified by a GroupKey. The key is derived from the selectors alone, so that equal peers of
// different policies share a group, and so that a control server and its nodes agree on the key. An
// Index keeps the members of all groups up to date. A control server can run the Index and publish
// the members of each group. A node then needs policies and the members, in a Published, but not all
// pods.
//
// The package is pure. Its types are not safe for concurrent use.
//
// Invariants:
//
//	S1 The members of a group are exactly the pods that its selectors select, have an address, and
//	   do not use the host network.
//	S2 Changes since the last Take, applied to the members at the last Take, are the members now.
//	S3 A pod change evaluates only the groups that can select pods of its namespace.
package selection
