// Package workloadstest contains a model of an API server and of the executor of decisions, for seeded tests of the
// packages below workloads.
//
// A test builds a world: a Server, a View for each controller under test, and an Executor that reads from the view,
// calls Decide and applies the decision as package workloads documents it. The world itself plays the parts that are
// not under test (kubelet, other controllers, users) by changing objects of the server directly. All randomness comes
// from the seed that RunSeeds hands to the test and prints if the test fails.
//
// The server checks what the real one checks and controllers depend on: names, UIDs, resource versions, generations,
// graceful deletion, finalizers, and the status that a decision writes. Kinds are distinguished by their Go types.
// Nothing here is safe for concurrent use.
package workloadstest
