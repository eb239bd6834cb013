//go:build !packaging

package main

import "github.com/spf13/cobra"

// packagingCommands returns nothing: released programs have no packaging commands.
func packagingCommands() []*cobra.Command { return nil }
