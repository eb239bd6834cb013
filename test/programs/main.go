// Command programs builds the programs and the root file system that tests share, before the tests: a
// build beside tests that run containers gets little CPU time and delays the tests that wait for it.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"time"

	"golang.org/x/sys/unix"

	"berth/test/hosts"
	"berth/test/nspawn"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, unix.SIGTERM)
	defer stop()
	if err := build(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

// build builds each program unless its cached copy is up to date.
func build(ctx context.Context) (err error) {
	crashpoints := []string{"crashpoints"}
	for _, p := range []struct {
		name  string
		build func(context.Context) (string, error)
	}{
		{"berth with the race detector", berth(hosts.BuildOptions{Race: true})},
		{"berth with crash points and the race detector", berth(hosts.BuildOptions{Race: true, Tags: crashpoints})},
		{"berth with crash points", berth(hosts.BuildOptions{Tags: crashpoints})},
		{"berth", berth(hosts.BuildOptions{})},
		{"berth-control", func(ctx context.Context) (string, error) {
			return hosts.BuildControl(ctx, hosts.BuildOptions{})
		}},
		{"CSI driver", hosts.BuildCSIDriver},
		{"device plugin", hosts.BuildDevicePlugin},
		{"kubectl", func(context.Context) (string, error) { return hosts.Kubectl() }},
		{"containerd", hosts.Containerd2},
		{"runc", hosts.Runc},
		{"previous release", hosts.BuildPreviousRelease},
		{"root file system of hosts with systemd", func(ctx context.Context) (string, error) {
			dir, _, err := nspawn.Base(ctx)
			return dir, err
		}},
	} {
		start := time.Now()
		if _, buildErr := p.build(ctx); buildErr != nil {
			err = errors.Join(err, fmt.Errorf("build %s: %w", p.name, buildErr))
			continue
		}
		fmt.Printf("%s: %s\n", p.name, time.Since(start).Round(time.Second/10))
	}
	return err
}

func berth(o hosts.BuildOptions) func(context.Context) (string, error) {
	return func(ctx context.Context) (string, error) { return hosts.BuildBerth(ctx, o) }
}
