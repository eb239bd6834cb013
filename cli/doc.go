// Package cli holds the commands that an operator types on the node: ps,
// describe, logs, exec, attach, port-forward, cp, debug, restart, top, why,
// timeline, plan, check, version and events.
//
// It owns how answers look: tables and words as kubectl has them where kubectl
// has the command, and JSON or YAML of the same types for programs. It asks the
// agent through a nodeapi.Client only, so it needs no access to the runtime.
// Exec, attach and cp talk to another server: the runtime's streaming URL that
// the agent hands out.
//
// It keeps no state, changes no pod but by asking the agent to (debug, restart),
// reads no file but the manifest of `plan -f` and what cp is to copy, and decides
// nothing about what it shows.
//
// Goroutines: logs of several containers followed at once have one each, exec
// and attach have one for changes of the window, cp has one that packs, a
// port-forward has one per port and per connection; the command waits for all of
// them.
//
// Invariants, each checked by a test of the same name:
//
//	V1 What is not a terminal gets no colour and no control character that the
//	   answer did not ask for; what comes from pods cannot move the cursor.
//	V2 JSON and YAML outputs are Kubernetes objects or nodeapi types, on stdout
//	   alone; notes for people go to stderr.
//	V3 The terminal is given back as it was, however exec or attach ends.
//	V4 What cp takes from a container stays below the target: no name, and no link
//	   that was there or came with it, leads out.
package cli
