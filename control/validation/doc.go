// Package validation implements defaulting and validation of all kinds except pods, including which
// fields are immutable. Pods and pod templates are validated by podspec, the kinds of the groups apps
// and batch by workloads/validation. The node agent shares both. The common part is internal/rules.
//
// The package is pure: a rule sees the object, and for an update also the old object. CEL
// expressions of device selectors are compiled by an upstream library, which caches its compiler.
// The result depends on the expression only. Validation that depends on other objects or the user
// is in control/admission.
//
// Invariants:
//
//	R1 Only Default and Prepare functions change their object.
//	R2 Default is idempotent and does not overwrite set fields.
//	R3 No rule panics, whatever object the decoder returns.
//	R4 Errors do not contain values of a Secret.
package validation
