// Package leaks finds what the container runtime and the pod network have left behind: tasks that the
// runtime no longer knows, unused shim sockets and leases, and network resources of sandboxes that no
// longer exist. IDs that the agent knows are skipped, so a search without findings does not query the
// runtime.
package leaks
