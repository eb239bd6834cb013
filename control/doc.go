// Package control is the control server: it joins the store (control/storage), the
// certificates (control/pki), the table of kinds (control/registry) and the parts
// that act on them to one server that speaks the Kubernetes API.
//
//	config.go    what the user can say
//	server.go    New and Run: the order of starting and of ending
//	assembly.go  what the parts are made from
//	storage.go   where a kind's objects go, sealed or not, cached or not
//	install.go   from rows and subresources to served groups
//	backup.go    what a server needs to begin anew, in one file and back
//	wire_*.go    one area each: the only places that know the other packages
//
// Goroutines: those of the library, ended by Run; one per Part (runParts), one
// that renews certificates, one per own store connection; all are waited for
// before Run returns.
package control
