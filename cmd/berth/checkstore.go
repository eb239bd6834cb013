package main

import "berth/agent/checkpoint"

// init makes this program able to check the local store: Open of package checkpoint executes it
// again for that.
func init() { checkpoint.RunCheckProcess() }
