// Package devices allocates the devices of device plugins to containers. It implements the
// kubelet's side of the device plugin API v1beta1 at the kubelet's paths.
//
// It owns the directory of the plugin sockets, the connections to the plugins, and the allocations.
// Admission decides how many pods get a device, based on NodeResources. The package does not decide
// when a container starts: Observe only reports what a start would have to wait for.
//
//	Register ──► plugin: options, ListAndWatch ──list──► resource ──► NodeResources, Observe
//	                │  stream ends: none is healthy        ▲
//	                └──► reconnect; after PluginGracePeriod: no capacity either
//
//	Allocate: reuse or choose ─► GetPreferredAllocation ─► Allocate ─► saved ─► PreStartContainer
//
// # Invariants, each checked by a test
//
//	D1 A device is never allocated to two pods, nor to two containers of one pod
//	   that may run at the same time, whatever plugins report and however often
//	   the agent restarts.
//	D2 A restarted container gets the same devices as long as they are healthy,
//	   also without its plugin, unless that requires PreStartContainer.
//	D3 An allocation is on disk before the container gets the device.
//	D4 A hanging plugin delays only containers that request its resource.
//	D5 A resource that was registered once is listed without capacity until its
//	   plugin is back, so that its pods wait for it.
//
// # Goroutines
//
// Run serves registrations and calls OnChange. One goroutine per registered plugin follows its
// device list. All end with Run's context. Allocate runs on the caller's goroutine, serialized per
// resource.
package devices
