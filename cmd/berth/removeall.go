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
	"berth/systemd"
)

// removeAllPods runs an agent without desired pods until no pod is left. The agent terminates all
// pods like orphaned pods, with their grace periods, and removes volumes, cgroups and logs.
// Resources shared by all pods are removed afterwards. The cgroups of pods are kept if the host has a
// kubelet, which does not create them again while it runs.
func removeAllPods(ctx context.Context, installed *nodeconfig.Config, out io.Writer, kubelet bool) error {
	dir, err := os.MkdirTemp("", "berth-uninstall-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }() // contains only the socket
	c := *installed
	c.Kubeconfig, c.BootstrapKubeconfig = "", ""
	c.StaticPodPath, c.Socket = dir, filepath.Join(dir, "berth.sock")
	c.Healthz.Port, c.Server.Enabled = 0, false
	c.Shutdown = nodeconfig.Shutdown{} // do not delay shutdowns
	// Off removes the rules, addresses and sockets that the installed agent has left.
	c.Network.ServiceProxy, c.Network.ClusterDNSServer = nodeconfig.Off, nodeconfig.Off
	c.Network.NetworkPolicy = nodeconfig.Off
	// Progress is written to out. Only problems are logged.
	b := &berth{config: &c, sockets: &systemd.Sockets{},
		log: slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))}
	if err := b.assemble(ctx); err != nil {
		return err
	}
	defer b.close()
	running, stop := context.WithCancel(ctx)
	defer stop()
	served := make(chan error, 1)
	go func() { served <- b.serve(running) }()
	err = b.waitForNoPods(ctx, served, out)
	stop()
	if err == nil {
		err = <-served
	}
	if err != nil {
		return err
	}
	if !kubelet {
		err = b.host.cgroups.RemoveRoot(ctx)
	}
	return errors.Join(
		err,
		gateway.Remove(b.routesFile(), b.log),
		cni.RemoveDefault(c.Network.CNIConfDir),
	)
}

// waitForNoPods waits until neither the runtime nor the host has anything left of a pod.
func (b *berth) waitForNoPods(ctx context.Context, served <-chan error, out io.Writer) error {
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for printed := -1; ; {
		select {
		case err := <-served:
			return fmt.Errorf("agent failed while terminating pods: %w", err)
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
		if !isClosed(b.agent.Ready()) {
			continue
		}
		known, err := b.runtime.client.Pods(ctx)
		if err != nil {
			continue // the runtime may be restarting, which the agent reports
		}
		host, err := b.host.Pods(ctx)
		if err != nil {
			return err
		}
		left := max(len(known), len(host), len(b.agent.StatusCache.List()))
		if left == 0 {
			return nil
		}
		if left != printed {
			printed = left
			if _, err := fmt.Fprintf(out, "  %d pods remaining\n", left); err != nil {
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
