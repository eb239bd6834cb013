//go:build packaging

package main

import (
	"github.com/spf13/cobra"

	"berth/packaging/files"
)

// packagingCommands returns the commands that are used to build a package.
func packagingCommands() []*cobra.Command {
	return []*cobra.Command{files.Command(defaultConfig), files.Reference()}
}
