// Command berth-control is the control server of berth: a lightweight Kubernetes API server with
// scheduler and controllers.
package main

import (
	"context"
	"errors"
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
	// Allocation profiling costs memory. It is enabled on request only.
	if !strings.Contains(os.Getenv("GODEBUG"), "memprofilerate=") {
		runtime.MemProfileRate = 0
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	root := &cobra.Command{
		Use:   "berth-control",
		Short: "A lightweight Kubernetes control plane",
		Long: `berth-control is the control server of berth. It serves the Kubernetes API, so that kubectl, client-go
and other Kubernetes tools work unchanged. It stores objects in an embedded etcd or in an external etcd cluster,
schedules pods and runs the controllers.`,
		SilenceUsage: true, SilenceErrors: true, Version: version,
	}
	root.AddCommand(
		serveCommand(),
		installCommand(),
		uninstallCommand(),
		tokenCommand(),
		kubeconfigCommand(),
		uiCommand(),
		rotateCommand(),
		rotateAuthorityCommand(),
		backupCommand(),
		restoreCommand(),
		checkCommand(),
	)
	root.AddCommand(packagingCommands()...)
	err := root.ExecuteContext(ctx)
	if exit, ok := errors.AsType[*exitError](err); ok {
		os.Exit(exit.code)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "berth-control:", err)
		os.Exit(1)
	}
}
