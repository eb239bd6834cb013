package cli

import (
	"fmt"

	"berth/nodeapi"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/remotecommand"
)

// attachOptions are the flags of attach.
type attachOptions struct {
	namespace, container string
	stdin, tty, quiet    bool
}

func (c *factory) attach() *cobra.Command {
	var o attachOptions
	cmd := &cobra.Command{
		Use:   "attach POD [-c CONTAINER] [-it]",
		Short: "Attach to a running container",
		Long: `Attach to the main process of a running container and print its output from now on. With -i, standard
input is passed to the process if its pod sets stdin. With -t, your terminal is connected to a
container that has one.`,
		Args: onePod,
		RunE: func(cmd *cobra.Command, args []string) error {
			client, pod, container, err := c.dialContainer(cmd, o.namespace, args[0], o.container)
			if err != nil {
				return err
			}
			defer client.Close()
			return o.run(cmd, client, pod, container)
		},
	}
	namespaceFlag(cmd, &o.namespace)
	cmd.Flags().StringVarP(&o.container, "container", "c", "", "container name")
	cmd.Flags().BoolVarP(&o.stdin, "stdin", "i", false, "pass stdin to the container")
	cmd.Flags().BoolVarP(&o.tty, "tty", "t", false, "stdin is a TTY")
	cmd.Flags().BoolVarP(&o.quiet, "quiet", "q", false, "only print output from the container")
	c.complete(cmd)
	return cmd
}

func (o attachOptions) run(cmd *cobra.Command, client *nodeapi.Client, pod *corev1.Pod, container string) error {
	at, err := client.Attach(
		cmd.Context(),
		nodeapi.AttachRequest{Namespace: pod.Namespace, Pod: pod.Name, Container: container, Stdin: o.stdin},
	)
	if err != nil {
		return err
	}
	streams := remotecommand.StreamOptions{Stdout: cmd.OutOrStdout(), Stderr: cmd.ErrOrStderr(), Tty: at.TTY}
	if at.TTY {
		streams.Stderr = nil
	}
	if o.stdin {
		streams.Stdin = cmd.InOrStdin()
	}
	own := terminalOf(cmd.InOrStdin())
	raw := o.tty && o.stdin && at.TTY && own != nil
	switch {
	case o.quiet:
	case o.tty && !at.TTY:
		o.note(cmd, fmt.Sprintf("Unable to use a TTY - container %s did not allocate one", container))
	case o.tty && !o.stdin:
		o.note(cmd, "Unable to use a TTY without -i")
	case o.tty && own == nil:
		o.note(cmd, "Unable to use a TTY - input is not a terminal")
	case raw:
		o.note(cmd, "If you don't see a command prompt, try pressing enter.")
	}
	if raw {
		return onTerminal(cmd.Context(), own, at.URL, streams)
	}
	return stream(cmd.Context(), at.URL, streams)
}

func (o attachOptions) note(cmd *cobra.Command, text string) {
	_, _ = fmt.Fprintln(cmd.ErrOrStderr(), text)
}
