package cli

import (
	"context"
	"io"
	"strings"

	"berth/nodeapi"

	"github.com/spf13/cobra"
)

// podView is a command that sends one request about one pod and prints the response, as text or
// with -o unchanged.
type podView[T any] struct {
	use, short string
	long       string
	fetch      func(context.Context, *nodeapi.Client, target) (T, error)
	text       func(target, screen, T) (string, error)
	// workload is the same for a workload; nil: the command takes only pods.
	workload func(ctx context.Context, client *nodeapi.Client, kind string, t target) (objectView, error)
	// service is the same for a Service.
	service func(ctx context.Context, client *nodeapi.Client, t target) (objectView, error)
}

// objectView is the response about a workload or a Service, and its text.
type objectView struct {
	answer any
	text   func() (string, error)
}

// workloadArgs is the long description of how commands that take pods accept workloads.
const workloadArgs = `A pod is NAME, NAMESPACE/NAME or pod/NAME. A workload of a manifest file is TYPE/NAME, with a TYPE
as in "berth get", for example deployment/web. A pod in a namespace with the name of such a TYPE requires -n.`

func (v podView[T]) command(c *factory) *cobra.Command {
	var namespace, format string
	cmd := &cobra.Command{
		Use:   v.use,
		Short: v.short,
		Long:  v.long,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 2 && v.takes(args[0]) {
				return nil
			}
			return onePod(cmd, args)
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := checkFormat(format, "json", "yaml"); err != nil {
				return err
			}
			if kind, name, two := kindAndName(args); two && v.takes(kind) {
				return v.showObject(c, cmd, kind, target{namespace, name}, format)
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
	if v.workload != nil {
		cmd.ValidArgsFunction = c.completePodsAndWorkloads
	}
	if v.service != nil {
		cmd.ValidArgsFunction = c.completeAll
	}
	return cmd
}

// kindAndName splits TYPE/NAME or TYPE NAME.
func kindAndName(args []string) (kind, name string, ok bool) {
	if len(args) == 1 {
		args = strings.SplitN(args[0], "/", 2)
	}
	if len(args) != 2 || args[1] == "" {
		return "", "", false
	}
	return args[0], args[1], true
}

// takes reports whether the command takes objects of a kind other than Pod.
func (v podView[T]) takes(kind string) bool {
	return v.workload != nil && workloadKind(kind) != "" || v.service != nil && isServiceKind(kind)
}

// showObject prints the response about a workload or a Service.
func (v podView[T]) showObject(c *factory, cmd *cobra.Command, kind string, t target, format string) error {
	client, err := c.dial()
	if err != nil {
		return err
	}
	defer client.Close()
	var view objectView
	if isServiceKind(kind) {
		view, err = v.service(cmd.Context(), client, t)
	} else {
		view, err = v.workload(cmd.Context(), client, workloadKind(kind), t)
	}
	if err != nil {
		return err
	}
	if format != "" {
		return encode(cmd.OutOrStdout(), format, view.answer)
	}
	text, err := view.text()
	if err != nil {
		return err
	}
	_, err = io.WriteString(cmd.OutOrStdout(), text)
	return err
}
