// Package strictyaml decodes YAML and JSON into Kubernetes API types so that
// every complaint names a line and a field.
//
// It is a leaf: the manifest source and the node's configuration both stand on
// it. It knows types by reflection only and defaults or validates nothing.
//
// Unquoted yes, no, on and off are booleans, as they are for kubectl.
//
// Invariants, each held by a test:
//
//	Y1 No input makes it panic, recurse without bound or expand aliases without
//	   bound.
//	Y2 An unknown field, a duplicate one, one with wrong case and a value of the
//	   wrong type are errors with a line and a field path.
//	Y3 No error quotes a value: it may be a Secret.
//	Y4 What it accepts, encoding/json decodes the same way from the JSON form.
package strictyaml
