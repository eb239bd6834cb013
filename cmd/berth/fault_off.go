//go:build !crashpoints

package main

import "berth/agent/plan"

// fault is called before and after every action. Only builds for the crash tests define it.
var fault func(phase string, a plan.Action)

// hang is called by every main loop. Only builds for the crash tests block in it.
func hang(string) {}
