//go:build !packaging

package main

import "github.com/spf13/cobra"

// packagingCommands are in no program that is shipped.
func packagingCommands() []*cobra.Command { return nil }
