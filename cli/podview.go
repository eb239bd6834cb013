package cli

import (
	"context"
	"io"

	"berth/nodeapi"

	"github.com/spf13/cobra"
)

// podView is a command that sends one request about one pod and prints the response, as text or
// with -o unchanged.
type podView[T any] struct {
	use, short string
	fetch      func(context.Context, *nodeapi.Client, target) (T, error)
	text       func(target, screen, T) (string, error)
}

func (v podView[T]) command(c *factory) *cobra.Command {
	var namespace, format string
	cmd := &cobra.Command{
		Use:   v.use,
		Short: v.short,
		Args:  onePod,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := checkFormat(format, "json", "yaml"); err != nil {
				return err
			}
			t, err := targetOf(cmd, namespace, args[0])
			if err != nil {
				return err
			}
			client, err := c.dial()
			if err != nil {
				return err
			}
			defer client.Close()
			answer, err := v.fetch(cmd.Context(), client, t)
			if err != nil {
				return err
			}
			if format != "" {
				return encode(cmd.OutOrStdout(), format, answer)
			}
			text, err := v.text(t, c.screen(cmd.OutOrStdout()), answer)
			if err != nil {
				return err
			}
			_, err = io.WriteString(cmd.OutOrStdout(), text)
			return err
		},
	}
	namespaceFlag(cmd, &namespace)
	cmd.Flags().StringVarP(&format, "output", "o", "", "output format: json or yaml")
	c.complete(cmd)
	return cmd
}
