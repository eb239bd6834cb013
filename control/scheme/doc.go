// Package scheme knows the Go types of the API: which kind each one is, how it
// is written to the wire and to the store, and how one version becomes another.
//
// It never decides what a kind may contain (control/validation) or where it is kept
// (control/registry).
//
// Only the published types of k8s.io/api are used. The library wants an
// internal version of each group as well, so each type is registered a second
// time under runtime.APIVersionInternal and no conversion is needed. That holds
// as long as a group is served in one version; the one exception, events, which
// are served by two groups from one store, has its conversion in events.go.
package scheme
