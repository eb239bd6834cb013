// Package serviceips allocates the addresses and node ports of Services, and maintains the Service
// default/kubernetes.
//
//	needs.go       what a Service needs
//	allocator.go   allocation for one request
//	claims.go      claims in etcd
//	store.go       the store of Services, which allocates with every write
//	repair.go      repair after a crash
//	ranges.go      validation of the ranges, and the address of this server
//	kubernetes.go  the Service default/kubernetes, by which pods reach the servers
//
// Each address and port is a key in etcd, which is created in a transaction. If several servers
// allocate at the same time, only one gets it. A key is claimed before the Service is stored, and
// released after the Service is deleted: a crash can leave a claim without a Service, but not the
// reverse. Repairer releases a claim that has no Service in two consecutive runs.
//
//	free ──acquire──► claimed ──service stored──► held ──service deleted──► free
//	                     └──── rejected, or crash and two repairs ────────► free
//
// Goroutines: none. The callers run Repairer.Run and KubernetesService.Run.
package serviceips
