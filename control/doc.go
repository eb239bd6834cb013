// Package control is the control server. It combines the store (control/storage), the certificates
// (control/pki), the API resources (control/registry), the scheduler and the controllers into one
// server that serves the Kubernetes API.
//
//	config.go           the configuration of a server
//	server.go           New and Run: the order of startup and shutdown
//	assembly.go         what the components of a server share
//	storage.go          storage options of a resource: encryption, watch cache
//	install.go          from registry kinds and subresources to API groups
//	handlers.go         the HTTP handler chain: storage quota, body timeouts
//	requestlimits.go    priority and fairness: limits, list widths, default objects
//	customresources.go  storage of CustomResourceDefinitions and of custom resources
//	aggregatedapis.go   storage of APIServices, documents and authentication of extension API servers
//	run.go              controllers, their restart, and leader election
//	backup.go           backup of a server to one archive, and restore
//	wire_*.go           one area each: only these files import the packages of the area
//
// Goroutines: those of the API server library, one per Controller, one that renews certificates,
// one for the objects of priority and fairness, one per embedded store. Run waits for all of them, but
// for those of the library's custom resource and APIService controllers and policy plugins, which end
// when the server stops.
package control
