//go:build !packaging

package main

import "github.com/spf13/cobra"

// packagingCommands returns nil in release builds.
func packagingCommands() []*cobra.Command { return nil }
