// Command conformance implements make conformance. It runs the Kubernetes conformance tests of a node
// ([sig-node] and [sig-storage]) against berth, once with berth-control and once with the control plane
// components of Kubernetes.
//
// The tests and those components are built from Kubernetes' Go module, which takes a quarter of an hour the
// first time. It pulls from no external registry: a registry on loopback serves replacements of the tests'
// images that are built from local files.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"

	"berth/test/images"
)

func main() {
	runtime.LockOSThread() // Pdeathsig kills child processes when the thread that started them exits
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	server := flag.String("server", "both",
		"control `plane`: control (berth-control), stock (components of Kubernetes), both, or "+
			"mixed (berth-control with the scheduler and controllers of Kubernetes)")
	focus := flag.String("focus", "", "run only the tests whose names match this regular expression")
	logs := flag.String("logs", "", "`directory` for reports and logs; empty: a new one")
	flag.Parse()
	if err := run(ctx, *server, *focus, *logs); err != nil {
		fmt.Fprintln(os.Stderr, "conformance:", err)
		os.Exit(1)
	}
}

// planes maps the values of -server to control planes.
var planes = map[string]func(ctx context.Context, p *programs, dir string) (*controlPlane, error){
	"control": func(ctx context.Context, p *programs, dir string) (*controlPlane, error) {
		return startBerthControl(ctx, p, dir)
	},
	"mixed": startMixed,
	"stock": startStock,
}

func run(ctx context.Context, server, focus, logs string) (err error) {
	if os.Geteuid() != 0 {
		return errors.New("run as root: pods need mounts, cgroups and network namespaces")
	}
	names := []string{"control", "stock"}
	if server != "both" {
		if planes[server] == nil {
			return fmt.Errorf("-server %q: it must be control, stock, both or mixed", server)
		}
		names = []string{server}
	}
	if logs == "" {
		if logs, err = os.MkdirTemp("", "berth-conformance-"); err != nil {
			return err
		}
	}
	if logs, err = filepath.Abs(logs); err != nil {
		return err
	}
	if err := os.MkdirAll(logs, 0o755); err != nil {
		return err
	}
	logStep("building (the components of Kubernetes take a quarter of an hour the first time)")
	p, err := build(ctx)
	if err != nil {
		return err
	}
	logStep("building replacements of the tests' images")
	registry, err := standIns(ctx, p, logs)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, registry.Close()) }()
	var failed []string
	for _, name := range names {
		all, err := runAgainst(ctx, name, p, registry, focus, filepath.Join(logs, name))
		if err != nil {
			return fmt.Errorf("%s (see %s): %w", name, logs, err)
		}
		all.print(os.Stdout, name)
		if !all.passed() {
			failed = append(failed, name)
		}
	}
	fmt.Println("reports and logs:", logs)
	if len(failed) > 0 {
		return fmt.Errorf("not all tests passed with %s", strings.Join(failed, " and "))
	}
	return nil
}

// runAgainst runs the tests against one control plane with one joined node.
func runAgainst(ctx context.Context, name string, p *programs, registry *images.Registry, focus,
	dir string) (all results, err error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	logStep("starting the control plane: " + name)
	pl, err := planes[name](ctx, p, dir)
	if err != nil {
		return nil, errors.Join(err, pl.stop())
	}
	defer func() { err = errors.Join(err, pl.stop()) }()
	logStep("joining a node")
	n, err := join(ctx, p, pl, registry, dir)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, n.stop()) }()
	logStep("running the tests")
	return test(ctx, p, pl, focus, dir)
}

func logStep(text string) { fmt.Fprintln(os.Stderr, "==>", text) }
