// Package podspec derives from a pod object alone: its defaults, its validity, the fields that
// berth does not support yet, its QoS class, its effective requests and limits, and the objects
// that it refers to.
//
// The package has no state and reads nothing but its arguments: no clock, file, lock, log or
// network. The agent, admission and the control server share it and treat the same pod in the same
// way. It does not decide what happens to a pod.
//
// SetDefaults comes first: Validate and all other functions expect a pod with defaults.
//
// # Requests and limits
//
// Requests and Limits use k8s.io/component-helpers/resource. RequestsWithStatus and
// LimitsWithStatus do not use its UseStatusResources option, because the results would differ in
// three cases. The library takes the maximum of sums, which is too small while one container grows
// and another one shrinks. It counts a container without a status as zero once a resize is
// infeasible. It ignores the observed generation of the PodResizePending condition, and a condition
// about an earlier resize would hide a newer one.
//
// # Invariants
//
//	P1 Only the SetDefaults functions change their argument. A pod may be shared
//	   otherwise.
//	P2 SetDefaults is idempotent and does not overwrite fields.
//	P3 No function panics, whatever object the decoder returns.
//	P4 Errors name the field by its path in the manifest. They never contain the
//	   value of a Secret.
package podspec
