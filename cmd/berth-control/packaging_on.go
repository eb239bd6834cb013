//go:build packaging

package main

import (
	"github.com/spf13/cobra"

	"berth/packaging/files"
)

// packagingCommands are in programs that are run while a package is made.
func packagingCommands() []*cobra.Command { return []*cobra.Command{files.Command(freshConfig)} }
