// Package nodeconfig loads the configuration of a node: upstream's
// KubeletConfiguration (kubelet.config.k8s.io/v1beta1), berth's own
// BerthConfiguration in a second document of the same file, and flags, which win.
//
// It owns the table of what becomes of every upstream field and the resolved
// Config, in which durations, quantities and addresses are parsed and defaults
// are filled in. It reads one file, and the host's name if nothing says it; it
// never looks at the rest of the host: whether a directory exists or a cgroup
// driver fits is the agent's business.
//
// Invariants, each held by a test:
//
//	N1 Every field of KubeletConfiguration is in the table, once.
//	N2 A field that is refused stops the start unless its value asks for what
//	   berth does anyway; an inert one is named in a warning.
//	N3 Every error names the file, the line and the field. An unknown field, a
//	   duplicate one and a wrong type are errors.
//	N4 docs/configuration.md is what the table says.
package nodeconfig
