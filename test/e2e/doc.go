// Package e2e runs berth with real versions of containerd and checks pods from the outside (status,
// files, cgroups, network) and from the inside (what a container observes).
//
// Tests share one host and one agent for each containerd version. The function forEachContainerd
// runs the body of a test on them, see versionsOf. A test that changes the node uses forEachNewNode. Each
// body has its own namespace, removes its manifests at the end and waits until the pods are deleted.
// When all tests have finished, no pod may have leaked resources on the hosts.
//
// A test of a scenario has the number of the scenario in its name.
package e2e
