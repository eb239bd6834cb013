//go:build packaging

package main

import (
	"github.com/spf13/cobra"

	"berth/packaging/files"
)

// packagingCommands returns the commands that are needed while a package is built.
func packagingCommands() []*cobra.Command {
	return []*cobra.Command{files.Command(freshConfig), files.Reference()}
}
