// Package node reads facts about the host: its addresses, its capacity and allocatable resources,
// the features of its kernel, and the signals that package pressure evaluates. It reads files and
// performs system calls. Except for the installation ID and the memory of the agent itself it
// changes nothing, and it makes no decisions about pods.
package node
