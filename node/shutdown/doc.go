// Package shutdown decides how the pods of a node go down with it: which group goes
// when, and how long each pod has. It is pure: no clock, no goroutine, no call.
//
// Invariants:
//
//  1. Every pod that is still to end is in exactly one step.
//  2. No pod has more time than its group has, or than it asks for.
//  3. Steps go from the lowest priority up: what others need goes last.
package shutdown
