// Package strictyaml decodes YAML and JSON into Kubernetes API types. Every error names a line and
// a field.
//
// The manifest source and the node configuration use it. It knows types by reflection only, and
// neither sets defaults nor validates.
//
// Unquoted yes, no, on and off are booleans, as in kubectl.
//
// # Invariants
//
// Each invariant is covered by a test.
//
//	Y1 No input causes a panic, unbounded recursion or unbounded expansion of
//	   aliases.
//	Y2 Unknown and duplicate fields, fields with wrong case and values of the wrong
//	   type are errors with a line and a field path.
//	Y3 Errors do not quote values, which may be Secrets.
//	Y4 Accepted input is decoded in the same way by encoding/json from its JSON
//	   form.
package strictyaml
