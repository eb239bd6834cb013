// Command berth-control is a control server for berth: a lightweight server of
// the Kubernetes API.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
)

// version is set by the build.
var version = "devel"

func main() {
	// What allocates is recorded only on demand: the record takes memory itself.
	if !strings.Contains(os.Getenv("GODEBUG"), "memprofilerate=") {
		runtime.MemProfileRate = 0
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	root := &cobra.Command{
		Use:   "berth-control",
		Short: "A lightweight server of the Kubernetes API",
		Long: `berth-control is the control server of berth: it speaks the Kubernetes API, so that kubectl, client-go and every tool for
Kubernetes work unchanged, keeps objects in an etcd of its own or in a cluster that you name, schedules pods and looks after nodes.`,
		SilenceUsage: true, SilenceErrors: true, Version: version,
	}
	root.AddCommand(serveCommand(), installCommand(), uninstallCommand(), tokenCommand(), kubeconfigCommand(), rotateCommand(), backupCommand(), restoreCommand())
	root.AddCommand(packagingCommands()...)
	if err := root.ExecuteContext(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "berth-control:", err)
		os.Exit(1)
	}
}
