// Package cli implements the commands of the node: ps, describe, logs, exec, attach, port-forward, cp,
// debug, restart, top, why, timeline, probes, plan, check, events, evict, images, version and
// drain-for-shutdown.
//
// It defines the output: tables and messages as in kubectl where kubectl has the command, and JSON or
// YAML of the same types for programs. The agent is accessed only through a nodeapi.Client, so no
// access to the runtime is required. Exec, attach and cp connect to the runtime's streaming URL that
// the agent returns.
//
// The package keeps no state and changes pods only by requests to the agent (debug, restart). It
// reads no files except the manifest of plan -f and the files to copy.
//
// Goroutines: one per followed log if there are several, one for terminal size changes of exec and
// attach, one to pack files in cp, and one per port and per connection of port-forward. A command
// waits for all of its goroutines.
//
// Invariants, each checked by a test of the same name:
//
//	V1 Output that is not a terminal contains no colors and no control characters. Text from
//	   pods cannot move the cursor.
//	V2 JSON and YAML outputs are Kubernetes objects or nodeapi types, on stdout only. Messages
//	   for users go to stderr.
//	V3 The terminal is restored, however exec or attach ends.
//	V4 Files that cp receives stay below the target: neither names nor symbolic links, existing
//	   or received, lead out of it.
package cli
