// Package fairness keeps the default objects of API Priority and Fairness, and estimates how much work
// lists are.
//
// The filter itself is that of k8s.io/apiserver. It matches each request with a FlowSchema and gives the
// PriorityLevelConfiguration of the schema a share of the server's concurrency.
package fairness
