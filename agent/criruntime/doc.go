// Package criruntime adapts the client of package cri to the runtime interfaces of packages agent and
// agent/pod. It converts, and decides nothing.
package criruntime
