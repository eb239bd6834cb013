package eviction

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"berth/agent/plan"
	"berth/agent/status"
	"berth/node/pressure"
)

// diskNode simulates a node whose disk usage a test controls. Of 1000 bytes, 500 must be free. Reclaim
// levels and evicted pods free space.
type diskNode struct {
	free     int64
	soft     bool
	levels   map[string]int64 // bytes that each reclaim level frees once
	images   []int64          // sizes of unused images; only as many as needed are removed
	reclaim  int64            // minimum reclaim
	failing  string           // reclaim level that fails
	pods     map[string]int64 // disk usage by pod
	critical string
	stuck    bool          // pods do not terminate
	slow     bool          // pods use their whole grace period
	grace    time.Duration // maximum of a soft threshold; 0: 5 s
	hardToo  time.Duration // time until the hard threshold is met as well; 0: never
	unready  bool
	memory   bool            // permanent memory pressure in addition
	only     pressure.Signal // the only signal for which pods are evicted; empty: all

	did []string
	log bytes.Buffer
}

func (s *diskNode) run(t *testing.T, d time.Duration) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		b := status.New()
		var free atomic.Int64
		free.Store(s.free)
		began := time.Now()
		record := func(format string, args ...any) {
			s.did = append(
				s.did,
				fmt.Sprintf("%s %s", time.Since(began).Round(time.Second), fmt.Sprintf(format, args...)),
			)
		}
		for name := range s.pods {
			b.Put(snapshotOf(name, func(x *status.Snapshot) {
				x.Verdict.State = plan.Admitted
				x.Pod.Spec.TerminationGracePeriodSeconds = new(int64(600))
				x.Observed.Volumes = map[string]plan.VolumeStatus{"data": {}}
				if name == s.critical {
					x.Pod.Spec.Priority = new(int32(2_000_000_000))
				}
			}))
		}
		b.Put(snapshotOf("waiting", nil)) // without usage
		level := func(name string) ReclaimLevel {
			return ReclaimLevel{
				Name:      name,
				AppliesTo: func(x pressure.Signal) bool { return x == pressure.NodefsAvailable },
				Reclaim: func(_ context.Context, enough func() bool) error {
					record("%s", name)
					for name == "images" && len(s.images) > 0 && !enough() {
						record("image of %d", s.images[0])
						free.Add(s.images[0])
						s.images = s.images[1:]
					}
					if name == s.failing {
						return errors.New("broken")
					}
					free.Add(s.levels[name])
					delete(s.levels, name)
					return nil
				},
			}
		}
		r := NewReclaimer(ReclaimerOptions{
			Statuses: b, Ready: func() bool { return !s.unready }, MaxGrace: cmp.Or(s.grace, 5*time.Second),
			Measure: func(_ context.Context, _ pressure.Signal, pods []*status.Snapshot) (out []pressure.Candidate) {
				for _, x := range pods {
					out = append(
						out,
						pressure.Candidate{
							Pod:      x.Pod,
							Measured: true,
							Usage:    pressure.Usage{Volumes: pressure.DiskUsage{Bytes: s.pods[x.Pod.Name]}},
						},
					)
				}
				return out
			},
			Levels: []ReclaimLevel{
				level("logs"),
				level("dead"),
				level("images"),
				{Name: "other", AppliesTo: func(pressure.Signal) bool { return false }},
			},
			Evict: func(_ context.Context, uid types.UID, why *plan.Eviction) bool {
				if s.only != "" && why.Signal != string(s.only) {
					return false
				}
				record("evict %s for %s, grace %s", uid, why.Signal, why.Grace)
				was, _ := b.Get(uid)
				now := *was
				now.Termination = &plan.Termination{Reason: "Evicted", Message: why.Message,
					EventDetail: why.EventDetail}
				b.Put(&now)
				if !s.stuck {
					over := now
					over.Status.Phase, over.Observed.Volumes = corev1.PodFailed, nil
					takes := 2 * time.Second
					if s.slow {
						takes += why.Grace
					}
					time.AfterFunc(takes, func() { free.Add(s.pods[string(uid)]); b.Put(&over) })
				}
				return true
			},
			OnEvicted:   func(signal string) { record("counts %s", signal) },
			RecordEvent: func(reason, message string) { record("event %s: %s", reason, message) },
			Log:         slog.New(slog.NewTextHandler(&s.log, nil)),
		})
		thresholds := []pressure.Threshold{
			{Signal: pressure.NodefsAvailable, Hard: !s.soft, Quantity: 500, MinReclaim: s.reclaim},
		}
		if s.soft {
			thresholds[0].GracePeriod = 30 * time.Second
			thresholds = append(
				thresholds,
				pressure.Threshold{Signal: pressure.NodefsAvailable, Hard: true, Quantity: 50},
			)
		}
		levels := func() map[pressure.Signal]pressure.Level {
			return map[pressure.Signal]pressure.Level{
				pressure.NodefsAvailable: {Available: free.Load(), Capacity: 1000},
				pressure.MemoryAvailable: {Available: 10, Capacity: 1000},
			}
		}
		if s.memory {
			thresholds = append(
				thresholds,
				pressure.Threshold{Signal: pressure.MemoryAvailable, Hard: true, Quantity: 100},
			)
		}
		if s.hardToo > 0 {
			time.AfterFunc(s.hardToo, func() { free.Store(10) })
		}
		p := NewMonitor(MonitorOptions{
			Config: pressure.Config{Thresholds: thresholds, TransitionPeriod: time.Minute},
			Read: func(context.Context) (pressure.Reading, error) {
				return pressure.Reading{At: time.Now(), Levels: levels()}, nil
			},
			OnObserved: func(Observation) {}, OnConditionsChanged: func(Observation) {},
			Log: slog.New(slog.DiscardHandler), Reclaim: r.Reclaim,
		})
		ctx, cancel := context.WithTimeout(t.Context(), d)
		defer cancel()
		p.Run(ctx)
		time.Sleep(time.Minute) // lets actions in progress finish
	})
}

func (s *diskNode) expect(t *testing.T, want ...string) {
	t.Helper()
	if !slices.Equal(s.did, want) {
		t.Errorf("did\n%s\nwant\n%s", strings.Join(s.did, "\n"), strings.Join(want, "\n"))
	}
}

const diskEvent = "0s event EvictionThresholdMet: Attempting to reclaim ephemeral-storage"

func TestScenario28_ReclaimsNodeResourcesBeforePods(t *testing.T) {
	t.Parallel()
	s := &diskNode{free: 400, levels: map[string]int64{"logs": 50, "dead": 60}, pods: map[string]int64{"p": 300}}
	s.run(t, time.Minute)
	s.expect(t, diskEvent, "0s logs", "0s dead") // no further levels are needed
	if log := s.log.String(); !strings.Contains(log, "freed=50") || !strings.Contains(log, "freed=60") {
		t.Errorf("the reclaimed amount is not logged:\n%s", log)
	}
}

func TestScenario28_DeletesNoMoreImagesThanNeeded(t *testing.T) {
	t.Parallel()
	s := &diskNode{free: 400, reclaim: 50, images: []int64{90, 30, 40, 100}, pods: map[string]int64{"p": 300}}
	s.run(t, time.Minute)
	s.expect(
		t,
		diskEvent,
		"0s logs",
		"0s dead",
		"0s images",
		"0s image of 90",
		"0s image of 30",
		"0s image of 40",
	) // up to 550, not only 500
	if log := s.log.String(); !strings.Contains(log, "freed=160") {
		t.Errorf("the reclaimed amount is not logged:\n%s", log)
	}
}

func TestScenario28_EvictsOnePodPerRound(t *testing.T) {
	t.Parallel()
	s := &diskNode{
		free:     100,
		failing:  "dead",
		pods:     map[string]int64{"small": 50, "big": 300, "middle": 200, "system": 900},
		critical: "system",
	}
	s.run(t, time.Minute)
	s.expect(
		t,
		diskEvent,
		"0s logs",
		"0s dead",
		"0s images",
		"0s evict big for nodefs.available, grace 1s",
		"0s counts nodefs.available",
		"2s logs",
		"2s dead",
		"2s images",
		"2s evict middle for nodefs.available, grace 1s",
		"2s counts nodefs.available",
	)
}

func TestStuckPodDelaysNextEviction(t *testing.T) {
	t.Parallel()
	s := &diskNode{free: 100, stuck: true, pods: map[string]int64{"a": 300, "b": 200}}
	s.run(t, 35*time.Second)
	s.expect(
		t,
		diskEvent,
		"0s logs",
		"0s dead",
		"0s images",
		"0s evict a for nodefs.available, grace 1s",
		"0s counts nodefs.available",
		"31s logs",
		"31s dead",
		"31s images",
		"31s evict b for nodefs.available, grace 1s",
		"31s counts nodefs.available",
	)
}

func TestSoftThresholdGracePeriods(t *testing.T) {
	t.Parallel()
	s := &diskNode{free: 400, soft: true, pods: map[string]int64{"p": 300}}
	s.run(t, 50*time.Second)
	const at = "30s " // end of the grace period of the threshold
	s.expect(
		t,
		at+diskEvent[3:],
		at+"logs",
		at+"dead",
		at+"images",
		at+"evict p for nodefs.available, grace 5s",
		at+"counts nodefs.available",
	)
}

func TestNoSecondEvictionWithinGracePeriod(t *testing.T) {
	t.Parallel()
	s := &diskNode{
		free:  400,
		soft:  true,
		slow:  true,
		grace: 5 * time.Minute,
		pods:  map[string]int64{"big": 300, "next": 200},
	}
	s.run(t, 10*time.Minute)
	const at = "30s "
	s.expect(
		t,
		at+diskEvent[3:],
		at+"logs",
		at+"dead",
		at+"images",
		at+"evict big for nodefs.available, grace 5m0s",
		at+"counts nodefs.available",
	)
}

func TestPodOverstayingGracePeriodDelaysNextEviction(t *testing.T) {
	t.Parallel()
	s := &diskNode{
		free:  400,
		soft:  true,
		stuck: true,
		grace: 5 * time.Minute,
		pods:  map[string]int64{"big": 300, "next": 200},
	}
	s.run(t, 6*time.Minute+10*time.Second)
	const at, then = "30s ", "6m0s "
	s.expect(
		t,
		at+diskEvent[3:],
		at+"logs",
		at+"dead",
		at+"images",
		at+"evict big for nodefs.available, grace 5m0s",
		at+"counts nodefs.available",
		then+"logs",
		then+"dead",
		then+"images",
		then+"evict next for nodefs.available, grace 5m0s",
		then+"counts nodefs.available",
	)
}

func TestHardThresholdDoesNotWaitForSoftGracePeriod(t *testing.T) {
	t.Parallel()
	s := &diskNode{
		free:    400,
		soft:    true,
		slow:    true,
		grace:   5 * time.Minute,
		hardToo: 65 * time.Second,
		pods:    map[string]int64{"big": 300, "next": 200, "spared": 100},
	}
	s.run(t, 73*time.Second+500*time.Millisecond) // then only the soft threshold is met again
	const at, then = "30s ", "1m10s "
	s.expect(
		t,
		at+diskEvent[3:],
		at+"logs",
		at+"dead",
		at+"images",
		at+"evict big for nodefs.available, grace 5m0s",
		at+"counts nodefs.available",
		then+"logs",
		then+"dead",
		then+"images",
		then+"evict next for nodefs.available, grace 1s",
		then+"counts nodefs.available",
		"1m13s logs",
		"1m13s dead",
		"1m13s images", // no eviction: the first pod is within its grace period
	)
}

const memoryEvent = "0s event EvictionThresholdMet: Attempting to reclaim memory"

func TestUnreclaimableMemoryDoesNotBlockDiskReclaim(t *testing.T) {
	t.Parallel()
	s := &diskNode{
		free:     400,
		memory:   true,
		levels:   map[string]int64{"images": 110},
		pods:     map[string]int64{"system": 300},
		critical: "system",
	}
	s.run(t, 25*time.Second)
	s.expect(t, memoryEvent, diskEvent, "0s logs", "0s dead", "0s images")
	if log := s.log.String(); strings.Count(log, "no pod left to evict") != 1 ||
		!strings.Contains(log, "memory.available is") {
		t.Errorf("%s", log)
	}
}

func TestOneEvictionPerRoundForSeveralSignals(t *testing.T) {
	t.Parallel()
	s := &diskNode{free: 100, memory: true, pods: map[string]int64{"a": 300, "b": 200}}
	s.run(t, time.Second)
	s.expect(t, memoryEvent, "0s evict a for memory.available, grace 1s", "0s counts memory.available")
	s = &diskNode{free: 100, memory: true, only: pressure.NodefsAvailable, pods: map[string]int64{"a": 300, "b": 200}}
	s.run(t, time.Second)
	s.expect(
		t,
		memoryEvent,
		diskEvent,
		"0s logs",
		"0s dead",
		"0s images",
		"0s evict a for nodefs.available, grace 1s",
		"0s counts nodefs.available",
	)
}

func TestRecurringPressureIsReportedAgain(t *testing.T) {
	t.Parallel()
	s := &diskNode{free: 400, hardToo: 305 * time.Second, pods: map[string]int64{"a": 300}}
	s.run(t, 5*time.Minute+25*time.Second)
	s.expect(
		t,
		diskEvent,
		"0s logs",
		"0s dead",
		"0s images",
		"0s evict a for nodefs.available, grace 1s",
		"0s counts nodefs.available",
		"5m10s"+diskEvent[2:],
		"5m10s logs",
		"5m10s dead",
		"5m10s images",
		"5m20s logs",
		"5m20s dead",
		"5m20s images",
	)
}

func TestReclaimWaitsForReady(t *testing.T) {
	t.Parallel()
	s := &diskNode{free: 100, unready: true, pods: map[string]int64{"p": 300}}
	s.run(t, time.Minute)
	s.expect(t)
}

func TestCriticalPodsAreNotEvicted(t *testing.T) {
	t.Parallel()
	s := &diskNode{free: 100, pods: map[string]int64{"system": 300}, critical: "system"}
	s.run(t, 25*time.Second)
	if text := strings.Join(s.did, " "); strings.Contains(text, "evict") ||
		strings.Count(s.log.String(), "no pod left to evict") != 1 {
		t.Errorf("%s\n%s", text, s.log.String())
	}
}
