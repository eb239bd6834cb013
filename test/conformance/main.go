// Command conformance is behind `make conformance`: it runs the conformance tests of
// Kubernetes that concern a node ([sig-node] and [sig-storage]) against berth, once
// with berth-control and once with a control plane of Kubernetes' own programs.
//
// The tests and those programs are built from Kubernetes' Go module, which takes a
// quarter of an hour the first time. No registry is asked: a registry on loopback has
// stand-ins of the tests' images, made of local files.
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
	runtime.LockOSThread() // what is started ends with the thread that started it, at the latest
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	server := flag.String("server", "both", "control (berth-control), stock (Kubernetes' own programs), both, or mixed (berth-control with Kubernetes' own scheduler and controllers)")
	focus := flag.String("focus", "", "run only the tests whose names match this regular expression")
	logs := flag.String("logs", "", "folder for reports and logs; empty: a new one")
	flag.Parse()
	if err := run(ctx, *server, *focus, *logs); err != nil {
		fmt.Fprintln(os.Stderr, "conformance:", err)
		os.Exit(1)
	}
}

// planes are the control planes that a node can join, by the flag's name.
var planes = map[string]func(ctx context.Context, p *programs, dir string) (*controlPlane, error){
	"control": func(ctx context.Context, p *programs, dir string) (*controlPlane, error) {
		return lightweight(ctx, p, dir)
	},
	"mixed": mixed,
	"stock": stock,
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
	logStep("building (Kubernetes' own programs take a quarter of an hour the first time)")
	p, err := build(ctx)
	if err != nil {
		return err
	}
	logStep("making stand-ins of the tests' images")
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

// runAgainst runs the tests with one control plane and a node that has joined it.
func runAgainst(ctx context.Context, name string, p *programs, registry *images.Registry, focus, dir string) (all results, err error) {
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
