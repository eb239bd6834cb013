// Package events keeps what a node tells its users about pods: the events of
// each pod and the timeline of its start.
//
// It owns two memories and nothing else: Events, Kubernetes events grouped per
// pod, and Timeline, the spans of one pod's stages and runtime calls. It never
// decides anything, never calls a server and starts no goroutine: a subscriber
// brings its own.
//
// Invariants, each held by a test:
//
//	R1 What is kept per pod is bounded in number and in bytes, whatever is told.
//	R2 The same reason told twice is one event with a higher count, whatever IDs
//	   the runtime has drawn for it.
//	R3 Telling never blocks, however slow a subscriber is; a subscriber that
//	   falls behind is told that it has missed something.
//	R4 A pod that is gone is forgotten after the retention, and the number of
//	   such pods is bounded too.
//	R5 A full timeline keeps the first start and the newest spans and says how
//	   many it has dropped from the middle.
//	R6 What is kept of a pod can be written and taken up again by a later life of
//	   the agent, with its counts and names; the restart is told. testdata holds
//	   the written forms; every later release must read them.
package events
