package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"berth/cni"
	"berth/cni/gateway"
	"berth/internal/nodeconfig"
)

// endAllPods runs an agent that wants no pod until nothing of any is left: it
// ends what it finds as every agent ends what nobody wants any more, with grace,
// volumes, cgroups and logs. Then it takes away what all pods shared.
func endAllPods(ctx context.Context, installed *nodeconfig.Config, out io.Writer) error {
	work, err := os.MkdirTemp("", "berth-uninstall-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(work) }() // empty but for a socket
	c := *installed
	c.Kubeconfig, c.BootstrapKubeconfig = "", ""
	c.StaticPodPath, c.Socket = work, filepath.Join(work, "berth.sock")
	c.Healthz.Port, c.Server.Enabled = 0, false
	c.Shutdown = nodeconfig.Shutdown{} // logind is not asked to wait for it
	// What ends is told in out; here only what goes wrong.
	b := &berth{config: &c, log: slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))}
	if err := b.assemble(ctx); err != nil {
		return err
	}
	defer b.close()
	running, stop := context.WithCancel(ctx)
	defer stop()
	served := make(chan error, 1)
	go func() { served <- b.serve(running) }()
	err = b.untilNoPods(ctx, served, out)
	stop()
	if err == nil {
		err = <-served
	}
	if err != nil {
		return err
	}
	return errors.Join(b.host.cgroups.RemoveRoot(ctx), gateway.Remove(b.routesFile(), b.log), cni.RemoveDefault(c.Network.CNIConfDir))
}

// untilNoPods waits until neither the runtime nor the host has anything of a pod.
func (b *berth) untilNoPods(ctx context.Context, served <-chan error, out io.Writer) error {
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for told := -1; ; {
		select {
		case err := <-served:
			return fmt.Errorf("the agent that ends the pods ended itself: %w", err)
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
		if !isClosed(b.agent.Ready()) {
			continue
		}
		known, err := b.runtime.client.Pods(ctx)
		if err != nil {
			continue // the runtime may be restarting; the agent says so
		}
		host, err := b.host.Pods(ctx)
		if err != nil {
			return err
		}
		left := max(len(known), len(host), len(b.agent.StatusCache.All()))
		if left == 0 {
			return nil
		}
		if left != told {
			told = left
			if _, err := fmt.Fprintf(out, "  %d pods are left\n", left); err != nil {
				return err
			}
		}
	}
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}
