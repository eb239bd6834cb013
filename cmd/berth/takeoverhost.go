package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"berth/agent/checkpoint"
	"berth/agent/ownership"
	"berth/internal/nodeconfig"
	"berth/node/handover"
	"berth/nodeapi"
	"berth/services/localaddress"
	"berth/services/nodeservices"
	"berth/services/proxy"
	"berth/systemd"
	"berth/systemd/install"
	"berth/volumes"
)

const (
	// takeoverTimeout limits the time until berth answers after its start.
	takeoverTimeout = 2 * time.Minute
	// adoptionTimeout limits the time until all pods are reported by berth as they were before.
	adoptionTimeout = time.Minute
)

// handoverHost executes the steps of a hand-over on this host.
type handoverHost struct {
	out      io.Writer
	stateDir string
}

// observe returns the state of the host. The record may be nil.
func (h *handoverHost) observe(ctx context.Context, r *handover.Record) (handover.Host, error) {
	kubelet, err := kubeletState(ctx)
	if err != nil {
		return handover.Host{}, err
	}
	p, err := install.Properties(ctx, "berth.service", "LoadState", "ActiveState", "UnitFileState")
	if err != nil {
		return handover.Host{}, err
	}
	own := unitStateOf(p)
	seen := handover.Host{
		Kubelet: kubelet, BerthInstalled: own.Loaded, BerthActive: own.Active,
		BerthEnabled:   strings.HasPrefix(own.Enabled, "enabled"),
		KubeletBlocked: install.Exists(handover.Dropin),
	}
	if r != nil {
		text, err := os.ReadFile(configFile)
		seen.Configured = err == nil && string(text) == r.Configuration
	}
	if install.IsPackaged("berth") {
		return seen, nil
	}
	w, err := takeoverSpec()
	if err != nil {
		return seen, err
	}
	state, err := install.Inspect(ctx, w)
	seen.BerthInstalled = err == nil && len(install.Plan(w, state)) == 0
	return seen, err
}

// takeoverSpec describes the files of berth without starting it.
func takeoverSpec() (install.Spec, error) {
	from, err := os.Executable()
	w := serviceSpec(from)
	w.NoStart = true
	return w, err
}

// run runs the remaining steps of a hand-over. The record of a takeover is on disk before the first
// step. The steps of a handback are run even if the record or another file cannot be written.
func (h *handoverHost) run(ctx context.Context, r *handover.Record) error {
	return runSteps(h.out, r, r.Write(h.stateDir),
		func() (handover.Host, error) { return h.observe(ctx, r) },
		func(step handover.Step, state handover.Host) error { return h.execute(ctx, step, r, state) })
}

// runSteps runs steps until none is left. written is the error of writing the record.
func runSteps(out io.Writer, r *handover.Record, written error, observe func() (handover.Host, error),
	execute func(handover.Step, handover.Host) error) error {
	failed, errs := handover.Failed{}, []error{written}
	if written != nil {
		if !r.Continues() {
			return written
		}
		failed[handover.Forget] = true // the record on disk is of another direction
	}
	for {
		state, err := observe()
		if err != nil {
			return errors.Join(append(errs, err)...)
		}
		step := handover.NextStep(r, state, failed)
		if step == handover.Done {
			return errors.Join(errs...)
		}
		_, err = fmt.Fprintln(out, step)
		if err != nil && !r.Continues() {
			return err
		}
		if err = execute(step, state); err == nil {
			if step == handover.Forget {
				return nil
			}
			continue
		}
		errs = append(errs, fmt.Errorf("%s: %w", step, err))
		if !r.Continues() {
			return errors.Join(errs...)
		}
		failed[step] = true
	}
}

func (h *handoverHost) execute(ctx context.Context, step handover.Step, r *handover.Record,
	state handover.Host) error {
	switch step {
	case handover.WriteConfiguration:
		if err := os.MkdirAll(configDir, 0o755); err != nil {
			return err
		}
		return handover.WriteFile(configFile, r.Configuration, 0o600)
	case handover.InstallBerth:
		return h.install(ctx)
	case handover.BlockKubelet:
		if err := os.MkdirAll(filepath.Dir(handover.Dropin), 0o755); err != nil {
			return err
		}
		if err := handover.WriteFile(handover.Dropin, handover.DropinText, 0o644); err != nil {
			return err
		}
		return h.systemctl(ctx, "daemon-reload")
	case handover.EnableBerth:
		return h.systemctl(ctx, "enable", "berth.service", systemd.DrainUnitName)
	case handover.StopKubelet:
		return h.stopUnit(ctx, state.Kubelet.Enabled, handover.KubeletService)
	case handover.StartBerth:
		if err := recheck(ctx, r); err != nil {
			return err
		}
		return h.systemctl(ctx, "start", "berth.service", systemd.DrainUnitName)
	case handover.AwaitBerth:
		if err := h.awaitBerth(ctx); err != nil {
			return err
		}
		r.Completed = true
		return r.Write(h.stateDir)
	case handover.StopBerth:
		return h.systemctl(ctx, "stop", systemd.DrainUnitName, "berth.service")
	case handover.DisableBerth:
		return h.systemctl(ctx, "disable", systemd.DrainUnitName, "berth.service")
	case handover.ReleasePods:
		return h.release(ctx, r)
	case handover.RestoreConfiguration:
		return h.restoreConfiguration(r)
	case handover.EnableKubelet:
		if r.Unit.Enabled == "enabled-runtime" {
			return h.systemctl(ctx, "enable", "--runtime", handover.KubeletService)
		}
		return h.systemctl(ctx, "enable", handover.KubeletService)
	case handover.CleanNode:
		return h.cleanNode(ctx, r)
	case handover.UnblockKubelet:
		if err := os.Remove(handover.Dropin); err != nil {
			return err
		}
		_ = os.Remove(filepath.Dir(handover.Dropin)) // fails if it has other drop-ins
		return h.systemctl(ctx, "daemon-reload")
	case handover.StartKubelet:
		return h.systemctl(ctx, "start", handover.KubeletService)
	default:
		return handover.RemoveRecord(h.stateDir)
	}
}

func (h *handoverHost) systemctl(ctx context.Context, args ...string) error {
	executor := install.Executor{Context: ctx, Out: io.Discard}
	return executor.Run([]install.Step{{Kind: install.Systemctl, Args: args}})
}

func (h *handoverHost) install(ctx context.Context) error {
	w, err := takeoverSpec()
	if err != nil {
		return err
	}
	state, err := install.Inspect(ctx, w)
	if err != nil {
		return err
	}
	return (&install.Executor{Context: ctx, Out: h.out}).Run(install.Plan(w, state))
}

// stopUnit stops a unit, and disables it if it can be disabled.
func (h *handoverHost) stopUnit(ctx context.Context, enabled, unit string) error {
	if err := h.systemctl(ctx, "stop", unit); err != nil {
		return err
	}
	if enabled == "enabled-runtime" {
		return h.systemctl(ctx, "disable", "--runtime", unit)
	}
	if enabled == "enabled" {
		return h.systemctl(ctx, "disable", unit)
	}
	return nil
}

// awaitBerth waits until the agent answers on its local socket.
func (h *handoverHost) awaitBerth(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, takeoverTimeout)
	defer cancel()
	return poll(ctx, func() error {
		_, err := agentPods(ctx)
		return err
	})
}

// poll repeats f until it succeeds. When ctx ends, it returns the last error of f.
func poll(ctx context.Context, f func() error) error {
	tick := time.NewTicker(250 * time.Millisecond)
	defer tick.Stop()
	for {
		err := f()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return err
		case <-tick.C:
		}
	}
}

// agentPods returns the pods that the agent reports, with their running containers.
func agentPods(ctx context.Context) ([]handover.Pod, error) {
	pods, err := agentPodList(ctx)
	return handover.AllPods(pods), err
}

// agentPodList returns the pods that the agent reports.
func agentPodList(ctx context.Context) ([]*corev1.Pod, error) {
	c, err := nodeapi.Dial(nodeconfig.DefaultSocket)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	all, err := c.Pods(ctx, nodeapi.PodsRequest{})
	if err != nil {
		return nil, err
	}
	var pods []*corev1.Pod
	for i := range all.Items {
		pods = append(pods, &all.Items[i])
	}
	return pods, nil
}

// awaitPods waits until the agent reports all pods with the containers that they had before, and
// returns what became of them.
func (h *handoverHost) awaitPods(ctx context.Context, before []handover.Pod) (out []handover.Outcome, err error) {
	ctx, cancel := context.WithTimeout(ctx, adoptionTimeout)
	defer cancel()
	pending := errors.New("pods are not adopted yet")
	err = poll(ctx, func() error {
		after, err := agentPods(ctx)
		if err != nil {
			return err
		}
		out = handover.Compare(before, after)
		for _, o := range out {
			if o.Failed() {
				return pending
			}
		}
		return nil
	})
	if errors.Is(err, pending) || out != nil && errors.Is(err, context.DeadlineExceeded) {
		err = nil // the caller reports the pods
	}
	return out, err
}

// release makes the pods foreign for a later berth, which finds them in the local store as released.
func (h *handoverHost) release(ctx context.Context, r *handover.Record) error {
	store, _, err := checkpoint.Open(checkpoint.Options{Path: filepath.Join(h.stateDir, storeFile)})
	if err != nil {
		return err
	}
	records, err := store.Load()
	if err != nil {
		return errors.Join(err, store.Close())
	}
	if err := removeServices(store, h.stateDir); err != nil {
		return errors.Join(err, store.Close())
	}
	dirs := &volumes.Volumes{Options: volumes.Options{RootDir: r.RootDir}}
	released, err := ownership.Release(ctx, store, dirs, slices.Collect(maps.Keys(records))...)
	if err := errors.Join(err, store.Close()); err != nil {
		return err
	}
	if _, err := fmt.Fprintf(h.out, "  %d pods\n", len(released)); err != nil {
		return err
	}
	r.Released = true
	return r.Write(h.stateDir)
}

// removeServices removes the rules of Services and network policies and the addresses of the DNS server,
// which stay when the agent stops. A kubelet and a kube-proxy find a clean host.
func removeServices(store *checkpoint.Store, stateDir string) error {
	stored, err := store.NodeValues(nodeservices.Prefix)
	if err != nil {
		return err
	}
	return nodeservices.Remove(nodeservices.RemoveOptions{
		Stored: stored, Put: store.PutNodeValue, RemoveProxy: func() error { return proxy.Remove(0) },
		Addresses: localaddress.Addresses{File: filepath.Join(stateDir, localaddress.FileName)},
		Log:       slog.New(slog.DiscardHandler),
	})
}

func (h *handoverHost) restoreConfiguration(r *handover.Record) error {
	var err error
	if r.Previous != nil {
		err = handover.WriteFile(configFile, *r.Previous, 0o600)
	} else if err = os.Remove(configFile); errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	if err != nil {
		return err
	}
	r.Restored = true
	return r.Write(h.stateDir)
}

// previousConfiguration returns the configuration file of berth. It is nil if there is none.
func previousConfiguration() (*string, error) {
	text, err := os.ReadFile(configFile)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	content := string(text)
	return &content, err
}
