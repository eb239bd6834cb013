// Package nodeconfig loads the configuration of a node: upstream's KubeletConfiguration
// (kubelet.config.k8s.io/v1beta1), berth's BerthConfiguration in a second document of the same
// file, and flags, which take precedence.
//
// The package owns the table that classifies every upstream field, and the resolved Config, in
// which durations, quantities and addresses are parsed and defaults are set. It reads one file, and
// the host name if no name is configured. It does not access the host otherwise: the agent checks
// whether directories exist or the cgroup driver matches.
//
// # Invariants
//
// Each invariant is covered by a test.
//
//	N1 Every field of KubeletConfiguration is in the table, once.
//	N2 A rejected field prevents the start unless its value is what berth does
//	   anyway. An ignored field causes a warning.
//	N3 Every error names the file, the line and the field. Unknown fields, duplicate
//	   fields and wrong types are errors.
//	N4 docs/reference/configuration.md is generated from the tables.
package nodeconfig
