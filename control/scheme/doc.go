// Package scheme registers the Go types of the API: the kind of each type, its encoding on the wire
// and in the store, and the conversion between versions.
//
// Validation of objects is in control/validation, their storage in control/registry.
//
// Only the published types of k8s.io/api are used. The library requires an internal version of each
// group, so each type is also registered under runtime.APIVersionInternal, and no conversion is
// needed. This works as long as a group is served in one version. The exception are events, which
// two groups serve from one store. Their conversion is in events.go.
package scheme
