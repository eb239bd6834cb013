//go:build !crashpoints

package main

import "berth/agent/plan"

// fault is told of every action before and after it; only builds for the crash
// tests have one.
var fault func(moment string, a plan.Action)

// stall is asked by every main loop whether it shall hang.
func stall(string) {}
