package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"berth/agent/source"
	"berth/cli"
)

func validateCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "validate FILE...",
		Short: "Check manifest files without a running agent",
		Long: `Check manifest files as the agent does when it reads them: syntax, unknown fields, values, and fields
that berth does not support. The exit code is 1 if a file is invalid. Warnings do not change it.`,
		Example: `  berth validate web.yaml
  berth validate /etc/berth/pods/*.yaml`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			invalid := 0
			for _, path := range args {
				data, err := os.ReadFile(path)
				if err == nil {
					err = validateManifest(cmd.OutOrStdout(), path, data)
				}
				if err == nil {
					continue
				}
				invalid++
				if _, err := fmt.Fprintf(cmd.ErrOrStderr(), "%s: %v\n", path, err); err != nil {
					return err
				}
			}
			if invalid > 0 {
				return &cli.ExitError{Code: 1, Err: fmt.Errorf("%d of %d files are invalid", invalid, len(args))}
			}
			return nil
		},
	}
}

// validateManifest prints what a manifest defines and its warnings.
func validateManifest(out io.Writer, path string, data []byte) error {
	name, err := os.Hostname()
	if err != nil {
		return fmt.Errorf("host name: %w", err)
	}
	if len(data) > source.MaxFileSize {
		return errors.New("the file is larger than the limit for a manifest")
	}
	now := time.Now()
	desired, err := source.Validate(
		source.Input{Path: path, Data: data, Modified: now, Now: now},
		source.Identity{NodeName: strings.ToLower(name)}, nil)
	if err != nil {
		return err
	}
	for _, w := range desired.Warnings {
		if _, err := fmt.Fprintf(out, "%s:%d: warning: %s\n", path, w.Line, w.Message); err != nil {
			return err
		}
	}
	_, err = fmt.Fprintf(out, "%s: valid: %d pods, %d workloads, %d Services, %d ConfigMaps and Secrets\n", path,
		len(desired.Pods), len(desired.Workloads), len(desired.Services), len(desired.Objects))
	return err
}
