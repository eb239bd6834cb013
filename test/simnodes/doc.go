// Package simnodes simulates the nodes of a control plane: it registers Nodes, renews their leases, and reports the
// status of the pods that are assigned to them, without running anything.
//
// A simulated node acknowledges a pod once: it reports the status that Options.Report sets. It removes a deleted pod at
// once.
package simnodes
