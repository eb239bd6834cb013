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
	"berth/systemd"
)

// errReload is why an agent ends that is to begin anew in the same process.
var errReload = errors.New("berth begins anew")

// runAndReload runs the agent. A hangup signal has it take its configuration
// anew, and other addresses of the host have it begin anew too (errMoved): what
// changes with it is not for parts to know, so the whole agent leaves and comes
// back, as in a restart that no pod notices. A bad configuration is
// told, and the agent goes on with the one that it has.
func runAndReload(ctx context.Context, flags *nodeconfig.Flags) error {
	config, warnings, err := nodeconfig.Load(flags)
	if err != nil {
		return err
	}
	hup := make(chan os.Signal, 1)
	signal.Notify(hup, syscall.SIGHUP)
	defer signal.Stop(hup)
	running, leave := context.WithCancelCause(ctx)
	defer leave(nil)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case <-running.Done():
				return
			case <-hup:
			}
			if newConfiguration(config, flags) {
				leave(errReload)
			}
		}
	}()
	err = run(running, config, warnings)
	reload := errors.Is(context.Cause(running), errReload)
	if errors.Is(err, errReload) {
		reload, err = true, nil
	}
	leave(nil)
	<-done
	if err != nil || !reload || ctx.Err() != nil {
		return err
	}
	return again()
}

// newConfiguration tells the service manager, and reports whether what is to be
// taken can be.
func newConfiguration(now *nodeconfig.Config, flags *nodeconfig.Flags) bool {
	log, err := telemetry.NewLog(telemetry.LogOptions{Format: now.LogFormat, Verbosity: now.Verbosity})
	if err != nil {
		return false // it was good before
	}
	reloading, err := systemd.Reloading()
	if err == nil {
		err = systemd.Notify(reloading, systemd.Status("takes its configuration anew"))
	}
	if err != nil {
		log.Warn("service manager", "err", err)
	}
	if _, _, err = nodeconfig.Load(flags); err == nil {
		log.Info("the configuration is taken anew")
		return true
	}
	log.Error("the configuration is bad; the agent goes on with the one that it has", "err", err)
	if err := systemd.Notify(systemd.Ready, systemd.Status("the new configuration is bad, see the log")); err != nil {
		log.Warn("service manager", "err", err)
	}
	return false
}

// again puts the program in its own place: the same process, which the service
// manager knows, and what lies at its path by now.
func again() error {
	program, err := exec.LookPath(os.Args[0])
	if err == nil {
		err = syscall.Exec(program, os.Args, os.Environ()) //nolint:gosec // its own command line
	}
	return fmt.Errorf("begin anew: %w", err)
}
