// Package events records the Kubernetes events of the node's pods and the timeline of each pod.
//
// It consists of Recorder, which keeps events grouped by pod, and Timeline, which keeps the spans
// of the stages and runtime calls of one pod. It makes no decisions, calls no server and starts no
// goroutines. Subscribers use their own.
//
// Invariants, each checked by a test:
//
//	R1 The number and the size of the events kept per pod are limited.
//	R2 A repeated reason is one event with a higher count, regardless of runtime
//	   IDs in its message.
//	R3 Recording never blocks on a slow subscriber. A subscriber that falls behind
//	   loses the oldest events and can read their number.
//	R4 The events of a deleted pod expire after the retention time, and the number
//	   of such pods is limited.
//	R5 A full timeline keeps the first start and the newest spans and counts the
//	   spans dropped between them.
//	R6 Events and timelines can be saved and restored by a later run of the agent
//	   with their counts and names. The restart is a span. testdata contains the
//	   encodings that every later release must read.
package events
