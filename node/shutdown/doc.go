// Package shutdown plans the graceful node shutdown: in which order groups of pods are terminated,
// and how much time each pod gets. It is pure: it has no clock, goroutine or I/O.
//
// Invariants:
//
//  1. Every pod that has not terminated is in exactly one step.
//  2. No pod gets more time than its group, or than its own grace period.
//  3. Steps are ordered by increasing priority: pods that others depend on are terminated last.
package shutdown
