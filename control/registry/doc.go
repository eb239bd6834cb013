// Package registry is the table of the resources that the control server stores: one Kind per
// resource (kinds_*.go), and the store that is created from it (store.go, strategy.go, scale.go).
//
// A Kind defines the names of a resource, its defaults, its validation, its printed columns and its
// storage options. It uses functions of control/validation and control/printers. Kinds that need
// more, such as pods, have a package of their own that uses NewStoreWithStrategy.
//
// The package starts no goroutines and has no state.
package registry
