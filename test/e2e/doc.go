// Package e2e runs berth with real versions of containerd and checks pods from the outside (status,
// files, cgroups, network) and from the inside (what a container observes).
//
// Tests share one host and one agent for each kind of containerd. The function both runs the body of
// a test on each. Each body has its own namespace, removes its manifests at the end and waits until
// the pods are deleted. When all tests have finished, nothing of any pod may remain on the hosts.
//
// A test of a row of the scenario list has the number of the row in its name.
package e2e
