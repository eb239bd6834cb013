// Command berth runs Kubernetes pods on this host and answers questions about
// them: `berth run` is the node agent, every other command asks it over a local
// socket.
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
	// What allocates is recorded only on demand: the record takes memory itself.
	if !strings.Contains(os.Getenv("GODEBUG"), "memprofilerate=") {
		goruntime.MemProfileRate = 0
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if err := root().ExecuteContext(ctx); err != nil {
		os.Exit(cli.PrintError(os.Stderr, err))
	}
}

func root() *cobra.Command {
	var socket string
	cmd := &cobra.Command{
		Use:   "berth",
		Short: "Run Kubernetes pods on this host",
		Long: `berth runs Kubernetes pods on a Linux host through containerd.

"berth run" is the node agent; systemd starts it. It takes pods from a folder of
manifest files, keeps them running and answers every other command over a local
socket that only root may open.`,
		Version:       version,
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	cmd.PersistentFlags().StringVar(&socket, "socket", "/run/berth/berth.sock", "local socket of the agent on this node")
	cmd.AddCommand(runCommand(), joinCommand(), installCommand(), uninstallCommand(), purgeCommand())
	cmd.AddCommand(packagingCommands()...)
	cmd.AddCommand(consoleCommands(&socket)...)
	cmd.InitDefaultCompletionCmd()
	if shells, _, err := cmd.Find([]string{"completion"}); err == nil {
		shells.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() } // else any other shell would be answered with help, and success
	}
	return cmd
}
