package main

import (
	"fmt"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"berth/control"
	"berth/control/pki"
)

func rotateCommand() *cobra.Command {
	var dataDir string
	cmd := &cobra.Command{
		Use:   "rotate-account-key",
		Short: "Have service account tokens signed by another key from the next start on",
		Long: `Have service account tokens signed by another key, which the server makes when it is started again. Tokens that the old key has
signed are good as before, until they expire or the file of the old key, whose name is printed, is removed and the server started
once more: remove it at once if the key is known to others, or when the last of its tokens has expired.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			former, err := pki.RetireServiceAccountKey(filepath.Join(dataDir, "pki"), time.Now())
			if err != nil {
				return err
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s\nis the old key now. Start the server again: it makes another and takes the tokens of both.\n", former)
			return err
		},
	}
	cmd.Flags().StringVar(&dataDir, "data-dir", control.Default().DataDir, "data directory of the server")
	return cmd
}
