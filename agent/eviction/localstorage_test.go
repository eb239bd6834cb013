package eviction

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"

	"berth/agent/plan"
	"berth/agent/status"
	"berth/node/pressure"
)

// snapshotOf returns the snapshot of a pod with a limited volume.
func snapshotOf(uid string, edit func(*status.Snapshot)) *status.Snapshot {
	pod := &corev1.Pod{}
	pod.Name, pod.Namespace, pod.UID = uid, "default", types.UID(uid)
	pod.Spec.Volumes = []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{
		EmptyDir: &corev1.EmptyDirVolumeSource{SizeLimit: new(resource.MustParse("5Mi"))},
	}}}
	s := &status.Snapshot{Pod: pod, Syncs: 1}
	s.Status.Phase = corev1.PodRunning
	if edit != nil {
		edit(s)
	}
	return s
}

// enforcerTest runs a LocalStorageEnforcer with pods that exceed their limits.
type enforcerTest struct {
	pods              []*status.Snapshot
	measured, evicted []string
	counted           []string
	walked            []string                 // disk usage was measured
	taken             int64                    // measured disk usage
	takes             map[string]time.Duration // duration of a measurement
	at                []string                 // start times of measurements
	err               error
	log               bytes.Buffer
}

// run runs the enforcer for a duration.
func (s *enforcerTest) run(t *testing.T, d time.Duration) (l *LocalStorageEnforcer) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), d)
		defer cancel()
		began := time.Now()
		l = NewLocalStorageEnforcer(LocalStorageOptions{
			Pods: func() []*status.Snapshot { return s.pods },
			ExceedsVolumeLimit: func(_ context.Context, pod *corev1.Pod) (*plan.Eviction, error) {
				s.measured = append(s.measured, pod.Name)
				s.at = append(s.at, fmt.Sprint(pod.Name, " ", time.Since(began)))
				time.Sleep(s.takes[pod.Name])
				if s.err != nil || s.taken > 0 {
					return nil, s.err
				}
				return &plan.Eviction{Signal: "emptydirfs.limit", Message: "full"}, nil
			},
			NewMeasurement: func(context.Context) MeasureFunc {
				return func(_ context.Context, p *status.Snapshot) (pressure.Usage, error) {
					s.walked = append(s.walked, p.Pod.Name)
					return pressure.Usage{Volumes: pressure.DiskUsage{Bytes: s.taken}}, s.err
				}
			},
			Evict: func(_ context.Context, uid types.UID, why *plan.Eviction) bool {
				s.evicted = append(s.evicted, string(uid)+": "+why.Message)
				return true
			},
			OnEvicted: func(signal string) { s.counted = append(s.counted, signal) },
			// Standalone stays false: joined to a server.
			Log: slog.New(slog.NewTextHandler(&s.log, nil)),
		})
		l.Run(ctx)
	})
	return l
}

func TestEvictionCandidatesForLocalStorage(t *testing.T) {
	t.Parallel()
	s := &enforcerTest{pods: []*status.Snapshot{
		snapshotOf("over", nil),
		snapshotOf("no-limit", func(s *status.Snapshot) { s.Pod.Spec.Volumes[0].EmptyDir.SizeLimit = nil }),
		snapshotOf(
			"in-memory",
			func(s *status.Snapshot) { s.Pod.Spec.Volumes[0].EmptyDir.Medium = corev1.StorageMediumMemory },
		),
		snapshotOf("failed", func(s *status.Snapshot) { s.Status.Phase = corev1.PodFailed }),
		snapshotOf("done", func(s *status.Snapshot) { s.Memory.FinishedAt = time.Unix(1, 0) }),
		snapshotOf("ending", func(s *status.Snapshot) { s.Termination = &plan.Termination{Reason: "Deleted"} }),
		snapshotOf("evicted-before", func(s *status.Snapshot) {
			s.Memory.Termination = &plan.Termination{Reason: "Evicted"}
		}),
		snapshotOf("not-looked-at", func(s *status.Snapshot) { s.Syncs = 0 }),
		snapshotOf("critical", func(s *status.Snapshot) { s.Pod.Spec.Priority = new(int32(2_000_000_000)) }),
	}}
	s.run(t, 45*time.Second)
	if !slices.Equal(s.measured, []string{"over"}) || !slices.Equal(s.evicted, []string{"over: full"}) ||
		!slices.Equal(s.counted, []string{"emptydirfs.limit"}) {
		t.Errorf("measured %q, evicted %q, counted %q", s.measured, s.evicted, s.counted)
	}
}

func TestMeasurementIntervalAndErrorLogging(t *testing.T) {
	t.Parallel()
	s := &enforcerTest{pods: []*status.Snapshot{snapshotOf("p", nil)}, err: errors.New("input/output error")}
	s.run(t, 61*time.Second)
	if len(s.measured) != 6 || len(s.evicted) != 0 {
		t.Errorf("measured %d times, evicted %q", len(s.measured), s.evicted)
	}
	if n := strings.Count(s.log.String(), "input/output error"); n != 1 {
		t.Errorf("logged %d times:\n%s", n, s.log.String())
	}
}

func TestSlowMeasurementsAreLessFrequent(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		sentence string
		takes    map[string]time.Duration
		over     time.Duration
		want     map[string]string // start times of measurements
	}{
		{
			"a slow pod does not delay others", map[string]time.Duration{"huge": 3 * time.Second,
				"tiny": time.Millisecond}, 135 * time.Second,
			map[string]string{"huge": "10 70 130", "tiny": "13 20 30 40 50 60 73 80 90 100 110 120 133"},
		},
		{
			"two slow pods share the time", map[string]time.Duration{"huge": 3 * time.Second, "vast": 3 * time.Second},
			255 * time.Second,
			map[string]string{"huge": "10 130 250", "vast": "13 133 253"},
		},
		{
			"many quick pods increase the interval", map[string]time.Duration{"a": 400 * time.Millisecond,
				"b": 400 * time.Millisecond, "c": 400 * time.Millisecond}, 60 * time.Second,
			map[string]string{"a": "10 34 58"},
		},
		{"the longest interval is ten minutes", map[string]time.Duration{"huge": 50 * time.Second}, 1300 * time.Second,
			map[string]string{"huge": "10 610 1210"}},
	} {
		s := &enforcerTest{takes: row.takes, taken: 1}
		for _, name := range slices.Sorted(maps.Keys(row.takes)) {
			s.pods = append(s.pods, snapshotOf(name, nil))
		}
		s.run(t, row.over)
		for name, want := range row.want {
			var got []string
			for _, at := range s.at {
				if of, when, _ := strings.Cut(at, " "); of == name {
					d, _ := time.ParseDuration(when)
					got = append(got, fmt.Sprint(int(d.Seconds())))
				}
			}
			if strings.Join(got, " ") != want {
				t.Errorf("%s: %s at %v, want %s", row.sentence, name, got, want)
			}
		}
	}
}

// limited adds an ephemeral storage limit to the container of a pod.
func limited(s *status.Snapshot) {
	s.Pod.Spec.Containers = []corev1.Container{{Name: "c", Resources: corev1.ResourceRequirements{
		Limits: corev1.ResourceList{corev1.ResourceEphemeralStorage: resource.MustParse("10Mi")},
	}}}
}

func TestEvictsPodOverEphemeralStorageLimit(t *testing.T) {
	t.Parallel()
	s := &enforcerTest{taken: 10<<20 + 1, pods: []*status.Snapshot{
		snapshotOf("limited", limited), snapshotOf("volume-only", nil),
		snapshotOf("critical", func(s *status.Snapshot) {
			limited(s)
			s.Pod.Spec.Priority = new(int32(2_000_000_000))
		}),
	}}
	s.run(t, 15*time.Second)
	if !slices.Equal(s.walked, []string{"limited"}) || !slices.Equal(s.counted, []string{"ephemeralpodfs.limit"}) ||
		!slices.Equal(
			s.evicted,
			[]string{"limited: Pod ephemeral local storage usage exceeds the total limit of containers 10Mi. "},
		) {
		t.Errorf("walked %q, evicted %q, counted %q", s.walked, s.evicted, s.counted)
	}
}

func TestEvictsOnPartialMeasurement(t *testing.T) {
	t.Parallel()
	s := &enforcerTest{taken: 11 << 20, err: errors.New("input/output error"),
		pods: []*status.Snapshot{snapshotOf("p", limited)}}
	s.run(t, 15*time.Second)
	if len(s.evicted) != 1 || s.log.Len() > 0 {
		t.Errorf("evicted %q: %s", s.evicted, s.log.String())
	}
	s = &enforcerTest{taken: 10 << 20, err: errors.New("input/output error"),
		pods: []*status.Snapshot{snapshotOf("p", limited)}}
	s.run(t, 35*time.Second)
	if n := strings.Count(s.log.String(), "storage limits not enforced"); len(s.evicted) != 0 || n != 1 {
		t.Errorf("evicted %q, logged %d times: %s", s.evicted, n, s.log.String())
	}
}
