// Package devices gives containers what device plugins have: it is the other
// side of the kubelet's device plugin API, v1beta1, under the kubelet's paths.
//
// It owns the directory of the plugins' sockets, the connections to them, and the
// ledger of which container holds which device. How many pods may have a device is
// not its matter: that is admission's, by the figures of Offered; nor when a
// container starts: it only says what a start would have to wait for.
//
//	Register ──► plugin: options, ListAndWatch ──list──► resource ──► Offered, Seen
//	                │  stream ends: none is healthy        ▲
//	                └──► asked again; gone for Grace: no capacity either
//
//	Give: take over or choose ─► GetPreferredAllocation ─► Allocate ─► kept ─► PreStartContainer
//
// # Invariants, each held by a test
//
//	D1 A device is never held by two pods, nor by two containers of one pod that
//	   may run at once, whatever plugins say and however often the agent restarts.
//	D2 A container that starts again gets the devices it had, for as long as they
//	   are healthy; also while its plugin is away, unless that wants to hear of it.
//	D3 Who holds what is on disk before a container is given it.
//	D4 A hanging plugin holds up nobody who does not want its resource.
//	D5 A resource that was registered once is listed with no capacity until its
//	   plugin is back, so that its pods wait for it.
//
// # Goroutines
//
// Run serves registrations and rings when something has changed; one per
// registered plugin follows its list. All end with Run's context. Calls of Give
// are made on their callers' goroutines, one at a time per resource.
package devices
