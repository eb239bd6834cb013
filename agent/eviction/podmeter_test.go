package eviction

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"berth/agent/status"
	"berth/node/pressure"
)

// TestPodMeterMeasuresDiskWithinOneMinute has pods that cannot be measured in time. Quick ones are
// complete, slow ones have a partial result, and pods that were not measured have their last
// result.
func TestPodMeterMeasuresDiskWithinOneMinute(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var pods []*status.Snapshot
		add := func(kind string, n int) {
			for i := range n {
				pods = append(pods, snapshotOf(fmt.Sprint(kind, i), nil))
			}
		}
		add("quick", 10)
		add("endless", 16) // four at once take a minute
		add("late", 3)
		var now, most atomic.Int64
		var log bytes.Buffer
		d := PodMeter{
			NewMeasurement: func(context.Context) MeasureFunc {
				return func(ctx context.Context, s *status.Snapshot) (u pressure.Usage, err error) {
					n := now.Add(1)
					defer now.Add(-1)
					for was := most.Load(); n > was && !most.CompareAndSwap(was, n); was = most.Load() {
					}
					u.Volumes = pressure.DiskUsage{Bytes: 5, Inodes: 1}
					if strings.HasPrefix(s.Pod.Name, "quick") {
						return u, nil
					}
					<-ctx.Done()
					return u, ctx.Err()
				}
			},
			LastUsage: func(uid types.UID) (pressure.Usage, bool) {
				return pressure.Usage{
						Volumes: pressure.DiskUsage{Bytes: 70},
						Layers:  pressure.DiskUsage{Bytes: 7},
					}, uid == "late2" ||
						uid == "quick0"
			},
			Log: slog.New(slog.NewTextHandler(&log, nil)),
		}
		began := time.Now()
		all := d.Measure(t.Context(), pressure.NodefsAvailable, pods)
		if took := time.Since(began); took != time.Minute || most.Load() != parallelism {
			t.Errorf("it took %s, %d at once", took, most.Load())
		}
		for i, c := range all {
			name := pods[i].Pod.Name
			want := pressure.Usage{
				Volumes: pressure.DiskUsage{Bytes: 5, Inodes: 1},
				Partial: !strings.HasPrefix(name, "quick"),
			}
			if name == "late2" {
				want.Volumes.Bytes, want.Layers.Bytes = 70, 7
			}
			if c.Pod.Name != name || !c.Measured || c.Usage.Volumes != want.Volumes || c.Usage.Layers != want.Layers ||
				c.Usage.Partial != want.Partial {
				t.Errorf("%s: %+v, want %+v", name, c.Usage, want)
			}
		}
		if text := log.String(); strings.Count(text, "\n") != 1 || !strings.Contains(text, "pods=19 total=29") {
			t.Errorf("%s", text)
		}
	})
}

func TestLastUsage(t *testing.T) {
	t.Parallel()
	s := &enforcerTest{taken: 3 << 20, pods: []*status.Snapshot{snapshotOf("p", limited), snapshotOf("unlimited", nil)}}
	l := s.run(t, 15*time.Second)
	if u, known := l.LastUsage("p"); !known || u.Volumes.Bytes != 3<<20 {
		t.Errorf("%+v, %v", u, known)
	}
	if u, known := l.LastUsage("unlimited"); known {
		t.Errorf("%+v", u)
	}
}

func TestPodMeterMeasuresMemory(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	d := PodMeter{
		Memory: func(_ context.Context, s *status.Snapshot) (u pressure.Usage, err error) {
			if s.Pod.Name == "gone" {
				return u, errors.New("no cgroup")
			}
			u.Memory = 7
			return u, nil
		},
		Log: slog.New(slog.NewTextHandler(&log, nil)),
	}
	got := d.Measure(t.Context(), pressure.MemoryAvailable,
		[]*status.Snapshot{snapshotOf("web", nil), snapshotOf("gone", nil)})
	if len(got) != 2 || !got[0].Measured || got[0].Usage.Memory != 7 || got[1].Measured {
		t.Errorf("got %+v", got)
	}
	if text := log.String(); strings.Count(text, "\n") != 1 || !strings.Contains(text, "no cgroup") {
		t.Errorf("got log\n%s", text)
	}
}
