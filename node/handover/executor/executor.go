// Package executor executes takeovers and handbacks on this host: it reads what the plans of package handover
// depend on, and runs the steps that package handover decides.
package executor

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"berth/agent/checkpoint"
	"berth/agent/ownership"
	"berth/internal/nodeconfig"
	"berth/node/handover"
	"berth/node/uninstall"
	"berth/systemd"
	"berth/systemd/install"
	"berth/volumes"
)

// Executor executes the steps of a hand-over on this host. It is not safe for concurrent use.
type Executor struct {
	Out        io.Writer // progress
	StateDir   string    // with the record of the hand-over
	ConfigFile string    // of berth
	Socket     string    // local socket of the agent
	// Service describes the program at a path as a systemd service.
	Service func(program string) install.Spec
}

// Observe returns the state of the host. The record may be nil.
func (x *Executor) Observe(ctx context.Context, r *handover.Record) (handover.Host, error) {
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
		text, err := os.ReadFile(x.ConfigFile)
		seen.Configured = err == nil && string(text) == r.Configuration
	}
	if install.IsPackaged("berth") {
		return seen, nil
	}
	w, err := x.service()
	if err != nil {
		return seen, err
	}
	state, err := install.Inspect(ctx, w)
	seen.BerthInstalled = err == nil && len(install.Plan(w, state)) == 0
	return seen, err
}

// service describes the files of berth without starting it.
func (x *Executor) service() (install.Spec, error) {
	from, err := os.Executable()
	w := x.Service(from)
	w.NoStart = true
	return w, err
}

// NewRecord writes the record of a new takeover. The state of the kubelet before an interrupted one
// is kept.
func (x *Executor) NewRecord(before *handover.Record, p handover.Plan, pods []*corev1.Pod,
	state handover.Host) (*handover.Record, error) {
	r := before
	if r == nil {
		if state.BerthActive || state.BerthEnabled {
			return nil, errors.New("berth.service is already in use on this host: stop and disable it first")
		}
		previous, err := x.previousConfiguration()
		if err != nil {
			return nil, err
		}
		r = &handover.Record{Unit: state.Kubelet, Previous: previous}
	}
	r.Direction, r.Completed, r.Released, r.Restored = handover.Takeover, false, false, false
	r.NodeCleaned, r.Resized = false, nil
	r.Configuration, r.RootDir = p.Configuration, p.RootDir
	r.Pods, r.Mirrors = handover.RunningPods(pods), handover.MirrorStatuses(pods)
	return r, r.Write(x.StateDir)
}

// previousConfiguration returns the configuration file of berth. It is nil if there is none.
func (x *Executor) previousConfiguration() (*string, error) {
	text, err := os.ReadFile(x.ConfigFile)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	content := string(text)
	return &content, err
}

// TakeOver runs the remaining steps of a takeover, and those of a handback after an error. It returns what
// became of each pod.
func (x *Executor) TakeOver(ctx context.Context, r *handover.Record) ([]handover.Outcome, error) {
	r.Turn(handover.Takeover)
	err := x.run(ctx, r)
	if err == nil {
		return x.awaitPods(ctx, r.Pods)
	}
	if _, e := fmt.Fprintf(x.Out, "takeover failed: %v\nrolling back\n", err); e != nil {
		return nil, errors.Join(err, e)
	}
	r.Turn(handover.Handback)
	if e := x.run(context.WithoutCancel(ctx), r); e != nil {
		return nil, errors.Join(err, fmt.Errorf("roll back: %w; remove the cause and run berth handback", e))
	}
	return nil, fmt.Errorf("%w; %s is as before", err, handover.KubeletService)
}

// HandBack runs the remaining steps of a handback. Those of a new one follow from its plan.
func (x *Executor) HandBack(ctx context.Context, r *handover.Record, plan *handover.Plan) error {
	if plan != nil {
		r.Resized = plan.Resized
	}
	r.Turn(handover.Handback)
	return x.run(ctx, r)
}

// NeedsPlan reports whether a takeover starts with a plan. An interrupted one that has stopped the kubelet
// continues with its record.
func NeedsPlan(r *handover.Record, state handover.Host) bool { return r == nil || state.Kubelet.Active }

// run runs the remaining steps of a hand-over. The record of a takeover is on disk before the first
// step. The steps of a handback are run even if the record or another file cannot be written.
func (x *Executor) run(ctx context.Context, r *handover.Record) error {
	return runSteps(x.Out, r, r.Write(x.StateDir),
		func() (handover.Host, error) { return x.Observe(ctx, r) },
		func(step handover.Step, state handover.Host) error { return x.execute(ctx, step, r, state) })
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

// execute executes one step.
//
//nolint:gocyclo // one case after another, each on its own
func (x *Executor) execute(ctx context.Context, step handover.Step, r *handover.Record,
	state handover.Host) error {
	switch step {
	case handover.WriteConfiguration:
		if err := os.MkdirAll(filepath.Dir(x.ConfigFile), 0o755); err != nil {
			return err
		}
		return handover.WriteFile(x.ConfigFile, r.Configuration, 0o600)
	case handover.InstallBerth:
		return x.install(ctx)
	case handover.BlockKubelet:
		if err := os.MkdirAll(filepath.Dir(handover.Dropin), 0o755); err != nil {
			return err
		}
		if err := handover.WriteFile(handover.Dropin, handover.DropinText, 0o644); err != nil {
			return err
		}
		return x.systemctl(ctx, "daemon-reload")
	case handover.EnableBerth:
		return x.systemctl(ctx, "enable", "berth.service", systemd.DrainUnitName)
	case handover.StopKubelet:
		return x.stopUnit(ctx, state.Kubelet.Enabled, handover.KubeletService)
	case handover.StartBerth:
		if err := x.recheck(ctx, r); err != nil {
			return err
		}
		return x.systemctl(ctx, "start", "berth.service", systemd.DrainUnitName)
	case handover.AwaitBerth:
		if err := x.awaitBerth(ctx); err != nil {
			return err
		}
		r.Completed = true
		return r.Write(x.StateDir)
	case handover.StopBerth:
		if err := x.systemctl(ctx, "stop", systemd.DrainUnitName, "berth.service"); err != nil {
			return err
		}
		// A berth that did not start in time leaves its unit failed. The command fails for a unit that systemd
		// does not have in memory, which is not failed.
		_ = x.systemctl(ctx, "reset-failed", "berth.service")
		return nil
	case handover.DisableBerth:
		return x.systemctl(ctx, "disable", systemd.DrainUnitName, "berth.service")
	case handover.ReleasePods:
		return x.release(ctx, r)
	case handover.ConvertCheckpoints:
		return x.convertCheckpoints(r)
	case handover.RestoreConfiguration:
		return x.restoreConfiguration(r)
	case handover.EnableKubelet:
		if r.Unit.Enabled == "enabled-runtime" {
			return x.systemctl(ctx, "enable", "--runtime", handover.KubeletService)
		}
		return x.systemctl(ctx, "enable", handover.KubeletService)
	case handover.CleanNode:
		return x.cleanNode(ctx, r)
	case handover.UnblockKubelet:
		if err := os.Remove(handover.Dropin); err != nil {
			return err
		}
		_ = os.Remove(filepath.Dir(handover.Dropin)) // fails if it has other drop-ins
		return x.systemctl(ctx, "daemon-reload")
	case handover.StartKubelet:
		return x.systemctl(ctx, "start", handover.KubeletService)
	default:
		return handover.RemoveRecord(x.StateDir)
	}
}

func (x *Executor) systemctl(ctx context.Context, args ...string) error {
	executor := install.Executor{Context: ctx, Out: io.Discard}
	return executor.Run([]install.Step{{Kind: install.Systemctl, Args: args}})
}

func (x *Executor) install(ctx context.Context) error {
	w, err := x.service()
	if err != nil {
		return err
	}
	state, err := install.Inspect(ctx, w)
	if err != nil {
		return err
	}
	return (&install.Executor{Context: ctx, Out: x.Out}).Run(install.Plan(w, state))
}

// stopUnit stops a unit, and disables it if it can be disabled.
func (x *Executor) stopUnit(ctx context.Context, enabled, unit string) error {
	if err := x.systemctl(ctx, "stop", unit); err != nil {
		return err
	}
	if enabled == "enabled-runtime" {
		return x.systemctl(ctx, "disable", "--runtime", unit)
	}
	if enabled == "enabled" {
		return x.systemctl(ctx, "disable", unit)
	}
	return nil
}

// release makes the pods foreign for a later berth, which finds them in the local store as released.
func (x *Executor) release(ctx context.Context, r *handover.Record) error {
	store, _, err := checkpoint.Open(checkpoint.Options{Path: filepath.Join(x.StateDir, nodeconfig.StoreFile)})
	if err != nil {
		return err
	}
	records, err := store.Load()
	if err != nil {
		return errors.Join(err, store.Close())
	}
	if err := uninstall.RemoveServices(store, x.StateDir); err != nil {
		return errors.Join(err, store.Close())
	}
	dirs := &volumes.Volumes{Options: volumes.Options{RootDir: r.RootDir}}
	released, err := ownership.Release(ctx, store, dirs, slices.Collect(maps.Keys(records))...)
	if err := errors.Join(err, store.Close()); err != nil {
		return err
	}
	if _, err := fmt.Fprintf(x.Out, "  %d pods\n", len(released)); err != nil {
		return err
	}
	r.Released = true
	return r.Write(x.StateDir)
}

// convertCheckpoints writes the resources of pods that were resized under berth for the kubelet.
func (x *Executor) convertCheckpoints(r *handover.Record) error {
	if err := handover.WriteResized(r.RootDir, r.Resized); err != nil {
		return err
	}
	r.Resized = nil
	return r.Write(x.StateDir)
}

func (x *Executor) restoreConfiguration(r *handover.Record) error {
	var err error
	if r.Previous != nil {
		err = handover.WriteFile(x.ConfigFile, *r.Previous, 0o600)
	} else if err = os.Remove(x.ConfigFile); errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	if err != nil {
		return err
	}
	r.Restored = true
	return r.Write(x.StateDir)
}

// unitStateOf returns the state of a unit from its properties.
func unitStateOf(properties map[string]string) handover.UnitState {
	active := properties["ActiveState"]
	return handover.UnitState{
		Loaded:  properties["LoadState"] != "not-found",
		Enabled: properties["UnitFileState"],
		Active:  active != "inactive" && active != "failed",
	}
}

// kubeletState returns the state of kubelet.service.
func kubeletState(ctx context.Context) (handover.UnitState, error) {
	p, err := install.Properties(ctx, handover.KubeletService, "LoadState", "ActiveState", "UnitFileState")
	return unitStateOf(p), err
}
