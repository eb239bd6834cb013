package handover

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"
)

// hostModel is a host with systemd, on which the steps of a hand-over are executed and interrupted.
type hostModel struct {
	Host
	record  *Record // on disk
	marked  bool    // pod directories have berth's marks
	stopped bool    // the kubelet has been stopped
	full    bool    // no file can be written
	config  string
	resized int // pods whose checkpoints a handback has to write
	// overwritten means that the checkpoints were written while the kubelet was active.
	overwritten bool
}

// errFull is the error of a step on a full disk.
var errFull = errors.New("no space left on device")

// write returns the error of writing the record.
func (w *hostModel) write(r *Record) error {
	if w.full {
		return errFull
	}
	stored := *r
	w.record = &stored
	return nil
}

// fails reports whether a step needs space on a full disk.
func (w *hostModel) fails(s Step) bool {
	return w.full && slices.Contains([]Step{
		WriteConfiguration, InstallBerth, BlockKubelet, EnableBerth, AwaitBerth, ReleasePods,
		ConvertCheckpoints, RestoreConfiguration, EnableKubelet, CleanNode,
	}, s)
}

// execute applies a step to the model, or only a part of it if the command is killed in its midst.
func (w *hostModel) execute(s Step, r *Record, killed bool) {
	persist := func() {
		if !killed {
			stored := *r
			w.record = &stored
		}
	}
	switch s {
	case WriteConfiguration:
		w.config = r.Configuration
	case InstallBerth:
		w.BerthInstalled = true
	case StopKubelet:
		w.Kubelet.Active, w.stopped = false, true
		if !killed && w.Kubelet.Enabled == "enabled" {
			w.Kubelet.Enabled = "disabled"
		}
	case BlockKubelet:
		w.KubeletBlocked = true
	case EnableBerth:
		w.BerthEnabled = true
	case StartBerth:
		if !killed {
			w.BerthActive, w.marked = true, true
		}
	case AwaitBerth:
		r.Completed = true
		persist()
	case StopBerth:
		w.BerthActive = w.BerthActive && killed
	case DisableBerth:
		w.BerthEnabled = false
	case UnblockKubelet:
		w.KubeletBlocked = false
	case ReleasePods:
		w.marked = false
		r.Released = true
		persist()
	case ConvertCheckpoints:
		w.overwritten = w.overwritten || w.Kubelet.Active
		if !killed {
			w.resized = 0
		}
		r.Resized = nil
		persist()
	case RestoreConfiguration:
		w.config = ""
		if r.Previous != nil {
			w.config = *r.Previous
		}
		r.Restored = true
		persist()
	case CleanNode:
		r.NodeCleaned = true
		persist()
	case EnableKubelet:
		w.Kubelet.Enabled = "enabled"
	case StartKubelet:
		w.Kubelet.Active = true
	case Forget:
		w.record = nil
	case Done:
	}
}

// startKubelet starts kubelet.service as another program or a boot does.
func (w *hostModel) startKubelet() {
	if !w.KubeletBlocked || !w.BerthEnabled {
		w.Kubelet.Active, w.resized = true, 0
	}
}

// boot is a power failure with a boot, on a host where the kubelet starts at boot.
func (w *hostModel) boot(begin UnitState) error {
	w.Kubelet.Active = false
	if w.Kubelet.enabled() || begin.Enabled == "static" { // another unit starts the latter
		w.startKubelet()
	}
	if w.BerthActive = w.BerthEnabled; w.BerthActive {
		w.marked = true
	}
	switch {
	case w.Kubelet.Active && w.BerthActive:
		return errors.New("H7: both agents are active after a boot")
	case !w.Kubelet.Active && !w.BerthActive:
		return errors.New("H7: no agent is active after a boot")
	}
	return nil
}

// command runs takeover or handback on the model until it is done, or killed at a random step.
func (w *hostModel) command(d Direction, rng *rand.Rand, begin UnitState, previous *string) error {
	if w.record == nil {
		if d == Handback {
			return nil
		}
		w.record = &Record{Unit: begin, Configuration: "new", Previous: previous, Direction: d}
	}
	r := *w.record
	if d == Handback && r.AdoptedPods() { // as the plan of the handback says
		w.resized, r.Resized = 1, map[types.UID]Allocation{"u": {}}
	}
	r.Turn(d)
	failed := Failed{}
	if w.write(&r) != nil {
		if !r.Continues() {
			return nil
		}
		failed[Forget] = true
	}
	for range 20 {
		h := w.Host
		h.Configured = w.config == r.Configuration
		step := NextStep(&r, h, failed)
		if step == Done {
			if d == Handback && begin.Active && !w.Kubelet.Active {
				return fmt.Errorf("H6: the kubelet is not active after a handback that failed at %v", failed)
			}
			return nil
		}
		if w.fails(step) {
			if !r.Continues() {
				return nil
			}
			failed[step] = true
			continue
		}
		killed := rng.IntN(8) == 0
		before := w.record
		if w.execute(step, &r, killed); killed {
			if step == Forget {
				w.record = before
			}
			return nil
		}
		if w.overwritten {
			return errors.New("checkpoints were written beside an active kubelet")
		}
		if step == StartKubelet && w.resized > 0 && !failed[ConvertCheckpoints] {
			return errors.New("the kubelet was started with the old resources of pods")
		}
		if w.Kubelet.Active { // it has applied its own
			w.resized = 0
		}
		if w.Kubelet.Active && w.BerthActive {
			return fmt.Errorf("H3: both agents are active after %q", step)
		}
		if step == Forget {
			return nil
		}
	}
	return fmt.Errorf("%s does not end", d)
}

// TestSimHandover runs takeovers and handbacks that are killed at random steps, some of them on a full disk.
func TestSimHandover(t *testing.T) { // H3 to H7
	t.Parallel()
	completed := map[Direction]int{}
	for seed := range uint64(2000) {
		rng := rand.New(rand.NewPCG(seed, 15))
		begin := UnitState{Loaded: true, Active: rng.IntN(4) > 0}
		begin.Enabled = []string{"enabled", "disabled", "static"}[rng.IntN(3)]
		var previous *string
		w := &hostModel{Host: Host{Kubelet: begin}}
		if rng.IntN(2) == 0 {
			old := "old"
			previous, w.config = &old, old
		}
		first := w.config
		for range 6 {
			d := []Direction{Takeover, Handback}[rng.IntN(2)]
			w.full = w.record != nil && rng.IntN(4) == 0
			if err := w.command(d, rng, begin, previous); err != nil {
				t.Fatalf("seed %d: %v", seed, err)
			}
			atBoot := begin.Active && begin.Enabled != "disabled"
			switch event := rng.IntN(4); {
			case event == 0 && atBoot:
				if err := w.boot(begin); err != nil {
					t.Fatalf("seed %d: %v: %+v", seed, err, w)
				}
			case event == 1 && begin.Active:
				w.startKubelet() // such as a restart by kubeadm
			}
			if w.Kubelet.Active && w.BerthActive {
				t.Fatalf("seed %d, H7: both agents are active: %+v", seed, w)
			}
			if w.stopped && w.record == nil && w.Kubelet != begin {
				t.Fatalf("seed %d, H5: the kubelet was stopped without a record", seed)
			}
		}
		w.full = false
		last := []Direction{Takeover, Handback}[rng.IntN(2)]
		for range 60 { // repeated until it is not killed
			if err := w.command(last, rng, begin, previous); err != nil {
				t.Fatalf("seed %d: %v", seed, err)
			}
		}
		switch last {
		case Takeover:
			if !w.BerthActive || !w.BerthEnabled || w.Kubelet.Active || w.Kubelet.enabled() || !w.record.Completed ||
				w.config != "new" {
				t.Fatalf("seed %d: incomplete takeover: %+v", seed, w)
			}
		case Handback:
			d := cmp.Diff(begin, w.Kubelet)
			if d != "" || w.BerthActive || w.BerthEnabled || w.marked || w.record != nil || w.config != first {
				t.Fatalf("seed %d, H4: incomplete handback: %+v\n%s", seed, w, d)
			}
		}
		completed[last]++
	}
	if completed[Takeover] < 100 || completed[Handback] < 100 {
		t.Errorf("too few hand-overs: %v", completed)
	}
}

func TestRecord(t *testing.T) {
	t.Parallel()
	dir := t.TempDir() + "/state"
	if r, err := ReadRecord(dir); r != nil || err != nil {
		t.Fatalf("got %v, %v without a record", r, err)
	}
	old := "old"
	r := &Record{Direction: Takeover, Unit: UnitState{Loaded: true, Enabled: "enabled", Active: true}, Previous: &old,
		Pods: []Pod{{Name: "shop/db", Containers: map[string]string{"c": "containerd://1"}}}, Completed: true}
	if err := r.Write(dir); err != nil {
		t.Fatal(err)
	}
	got, err := ReadRecord(dir)
	if d := cmp.Diff(r, got); err != nil || d != "" {
		t.Errorf("%v\n%s", err, d)
	}
	got.Turn(Takeover)
	if !got.Completed {
		t.Error("the same direction resets the record")
	}
	if got.Turn(Handback); got.Completed || got.Unit != r.Unit {
		t.Errorf("got %+v after the other direction", got)
	}
	if err := WriteFile(dir+"/"+RecordFile, `{"version":9}`, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := ReadRecord(dir); err == nil {
		t.Error("a record of an unknown version is accepted")
	}
	if err := RemoveRecord(dir); err != nil {
		t.Error(err)
	}
	if err := RemoveRecord(dir); err != nil {
		t.Errorf("remove again: %v", err)
	}
}
