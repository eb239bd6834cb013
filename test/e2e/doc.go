// Package e2e runs the real program on real containerds and looks at what
// becomes of pods: from outside (status, files, cgroups, the network) and from
// inside (what a container sees).
//
// Tests share one host per kind of containerd, with one agent each; both runs a
// test's body on either. Each body has a namespace of its own and takes its
// manifests away at the end, waiting until the pods are gone. When all tests
// have ended, nothing of any pod may remain on the hosts.
//
// A test for a row of the scenario list carries the row's number in its name.
package e2e
