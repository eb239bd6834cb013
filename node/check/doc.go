// Package check checks whether a node can run pods: the runtime, the network, cgroups, kernel
// settings, file systems and, for a node in a cluster, the API server. The checks only read. They are
// executed by the agent, or by `berth check` itself if the agent is not running.
//
// The results are nodeapi.CheckReport items. The names of the items are stable.
package check
