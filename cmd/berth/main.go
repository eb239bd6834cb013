// Command berth runs Kubernetes pods on this host. "berth run" is the node agent. The other
// commands send requests to the agent over a local socket.
package main

import (
	"context"
	"os"
	"os/signal"
	goruntime "runtime"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"berth/cli"
)

// Set by the linker, see the Makefile.
var (
	version = "devel"
	commit  = ""
	date    = ""
)

func main() {
	// Memory profiling is disabled by default because it uses memory itself.
	if !strings.Contains(os.Getenv("GODEBUG"), "memprofilerate=") {
		goruntime.MemProfileRate = 0
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if err := root().ExecuteContext(ctx); err != nil {
		os.Exit(cli.PrintError(os.Stderr, err))
	}
}

// Groups of commands in the help and in the reference: those that install, check or run the agent, and those that
// send requests to it.
const (
	agentGroup = "agent"
	podGroup   = "pods"
)

func addGroup(root *cobra.Command, group string, commands ...*cobra.Command) {
	for _, c := range commands {
		c.GroupID = group
		if c.Name() == "check" || c.Name() == "version" {
			c.GroupID = agentGroup
		}
	}
	root.AddCommand(commands...)
}

func root() *cobra.Command {
	var socket string
	cmd := &cobra.Command{
		Use:   "berth",
		Short: "Run Kubernetes pods on this host",
		Long: `berth runs Kubernetes pods on a Linux host through containerd.

"berth run" is the node agent, which systemd starts. It runs the pods from a directory of manifest files or
from an API server. All other commands send requests to the agent over a local socket that only root can
access.`,
		Version:       version,
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	cmd.PersistentFlags().
		StringVar(&socket, "socket", "/run/berth/berth.sock", "local socket of the agent on this node")
	cmd.AddGroup(&cobra.Group{ID: agentGroup, Title: "Agent:"}, &cobra.Group{ID: podGroup, Title: "Pods and node:"})
	addGroup(cmd, agentGroup, runCommand(), joinCommand(), installCommand(), uninstallCommand(), purgeCommand(),
		takeoverCommand(), handbackCommand(), validateCommand())
	cmd.AddCommand(packagingCommands()...)
	addGroup(cmd, podGroup, clientCommands(&socket)...)
	cmd.InitDefaultCompletionCmd()
	if shells, _, err := cmd.Find([]string{"completion"}); err == nil {
		// otherwise cobra prints help and succeeds for an unknown shell
		shells.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
	}
	return cmd
}
