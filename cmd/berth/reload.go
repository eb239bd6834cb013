package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"syscall"

	"berth/internal/nodeconfig"
	"berth/internal/telemetry"
	"berth/node"
	"berth/services/nodeservices"
	"berth/systemd"
)

// errReload is the cause of a restart in the same process.
var errReload = errors.New("restarting")

// runAndReload runs the agent. SIGHUP, and a change of the host's addresses (errAddressesChanged) or of the
// kind of the control plane (errControlPlaneChanged), restart the complete agent in the same process with a
// new configuration, because a change can affect many packages. Pods keep running. An invalid configuration
// is reported, and the agent keeps its current one.
func runAndReload(ctx context.Context, flags *nodeconfig.Flags) error {
	config, warnings, err := nodeconfig.Load(flags)
	if err != nil {
		return err
	}
	sockets := systemd.InheritSockets(dnsSockets)
	hup := make(chan os.Signal, 1)
	signal.Notify(hup, syscall.SIGHUP)
	defer signal.Stop(hup)
	running, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case <-running.Done():
				return
			case <-hup:
			}
			if validateReload(config, flags) {
				cancel(errReload)
			}
		}
	}()
	err = run(running, config, warnings, sockets)
	reload := errors.Is(context.Cause(running), errReload)
	if errors.Is(err, errReload) {
		reload, err = true, nil
	}
	cancel(nil)
	<-done
	if err != nil || !reload {
		return err
	}
	// From here on SIGTERM ends the process. One that was handled before has ended ctx.
	signal.Reset(syscall.SIGINT, syscall.SIGTERM)
	if ctx.Err() != nil {
		return nil
	}
	return reexec(sockets)
}

// validateReload notifies the service manager and reports whether the new configuration is valid.
func validateReload(current *nodeconfig.Config, flags *nodeconfig.Flags) bool {
	log, err := telemetry.NewLog(telemetry.LogOptions{Format: current.LogFormat, Verbosity: current.Verbosity})
	if err != nil {
		return false // it was valid before
	}
	reloading, err := systemd.Reloading()
	if err == nil {
		err = systemd.Notify(reloading, systemd.Status("reloading the configuration"))
	}
	if err != nil {
		log.Warn("service manager notification failed", "err", err)
	}
	if _, _, err = nodeconfig.Load(flags); err == nil {
		log.Info("configuration reload started")
		return true
	}
	log.Error("configuration reload failed, keeping the current configuration", "err", err)
	if err := systemd.Notify(systemd.Ready, systemd.Status("configuration reload failed, see the log")); err != nil {
		log.Warn("service manager notification failed", "err", err)
	}
	return false
}

// reexec replaces the process image with the program that is now at its path. The process ID, which
// the service manager tracks, stays the same. It gets the sockets.
func reexec(sockets *systemd.Sockets) error {
	program, err := exec.LookPath(os.Args[0])
	if err == nil {
		err = sockets.PassOn()
	}
	if err == nil {
		err = syscall.Exec(program, os.Args, os.Environ()) //nolint:gosec // own command line
	}
	return fmt.Errorf("restart: %w", err)
}

// errAddressesChanged restarts the agent. The addresses are in the status of every pod, in hosts
// files, in certificates and in the Node, which cannot be updated one by one.
var errAddressesChanged = fmt.Errorf("node addresses changed: %w", errReload)

// errControlPlaneChanged restarts the agent. What runs on the node depends on the kind of its control plane.
var errControlPlaneChanged = fmt.Errorf("control plane changed: %w", errReload)

// watchControlPlane returns errControlPlaneChanged or, when ctx ends, nil.
func (b *berth) watchControlPlane(ctx context.Context) error {
	if b.config.Standalone() || !nodeservices.ControlPlaneChanged(ctx, b.services.Services, b.services.policies) {
		return nil
	}
	b.log.Info("control plane changed, restarting")
	return errControlPlaneChanged
}

// watchAddresses returns errAddressesChanged or, when ctx ends, nil. Configured addresses never
// change.
func (b *berth) watchAddresses(ctx context.Context) error {
	if len(b.config.NodeIPs) > 0 {
		return nil
	}
	if changed := node.WatchAddresses(ctx, b.host.addrs); changed != nil {
		b.log.Info("node addresses changed, restarting", "previous", b.host.addrs, "current", changed)
		return errAddressesChanged
	}
	return nil
}
