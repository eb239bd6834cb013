// Package policyaddresses serves the resource networkpolicyaddresses of policies.berth.dev: the addresses
// that peers of NetworkPolicies select, see package berth/services/policy/addresses. A node needs it
// instead of the pods and namespaces of the cluster.
//
// Nothing is stored. Every server computes the objects from its informers, so that they are as new as the
// server's own view of the cluster after any restart. A resource version is valid at the server that gave
// it: a watch that continues at another server gets the error Expired, and the client lists again.
//
// Without NetworkPolicies, no pod is looked at and there are no objects.
//
// Goroutines: Run, and one for each watch, which ends with it.
package policyaddresses
