package shutdown

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
)

func pod(name string, priority int32, grace int64) *corev1.Pod {
	p := &corev1.Pod{}
	p.Namespace, p.Name = "default", name
	p.Spec.Priority, p.Spec.TerminationGracePeriodSeconds = &priority, &grace
	return p
}

// formatted formats steps: group: pod=grace …
func formatted(steps []Step) (out []string) {
	for _, s := range steps {
		line := fmt.Sprintf("%d/%s:", s.Priority, s.Group.GracePeriod)
		for _, p := range s.Pods {
			line += fmt.Sprintf(" %s=%s", p.Name, p.GracePeriod)
		}
		out = append(out, line)
	}
	return out
}

func TestStepsByGroup(t *testing.T) {
	pods := []*corev1.Pod{
		pod(
			"web",
			0,
			30,
		),
		pod("db", 500, 5),
		pod("agent", 2_000_001_000, 60),
		pod("dns", 2_000_000_000, 2),
		pod("batch", -10, 30),
		pod("vip", 100_000, 300),
	}
	for _, c := range []struct {
		what            string
		total, critical time.Duration
		groups          []Group
		want            []string
	}{
		{"nothing is configured", 0, 0, nil, nil},
		{"critical pods have the end of the time", 30 * time.Second, 10 * time.Second, nil,
			[]string{"0/20s: batch=20s db=5s vip=20s web=20s", "2000000000/10s: agent=10s dns=2s"}},
		{"no time is kept for critical pods", 30 * time.Second, 0, nil,
			[]string{"0/30s: batch=30s db=5s vip=30s web=30s", "2000000000/0s: agent=0s dns=0s"}},
		{"groups in any order, and none below the first", 0, 0,
			[]Group{{100_000, 10 * time.Second}, {500, 7 * time.Second}, {2_000_000_000, time.Minute},
				{1 << 30, time.Hour}},
			[]string{"500/7s: batch=7s db=5s web=7s", "100000/10s: vip=10s", "2000000000/1m0s: agent=1m0s dns=2s"}},
	} {
		t.Run(c.what, func(t *testing.T) {
			if diff := cmp.Diff(c.want, formatted(Steps(pods, Groups(c.total, c.critical, c.groups)))); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestStepsInvariants(t *testing.T) {
	for seed := range uint64(500) {
		r := rand.New(rand.NewPCG(seed, 1))
		var pods []*corev1.Pod
		for i := range r.IntN(20) {
			pods = append(pods, pod(fmt.Sprint("p", i), int32(r.IntN(100)-20), int64(r.IntN(100))))
		}
		var groups []Group
		for at := range r.IntN(5) + 1 {
			groups = append(groups, Group{int32(at*20 - r.IntN(10)), time.Duration(r.IntN(60)) * time.Second})
		}
		groups = Groups(0, 0, groups)
		seen, last := map[string]bool{}, int32(-1<<31)
		for _, s := range Steps(pods, groups) {
			if s.Priority <= last {
				t.Fatalf("seed %d: group %d after %d", seed, s.Priority, last)
			}
			for _, p := range s.Pods {
				if seen[p.Name] || p.GracePeriod > s.Group.GracePeriod ||
					p.GracePeriod > time.Duration(*p.Spec.TerminationGracePeriodSeconds)*time.Second {
					t.Fatalf(
						"seed %d: %s has %s in a group of %s, twice %v",
						seed,
						p.Name,
						p.GracePeriod,
						s.Group.GracePeriod,
						seen[p.Name],
					)
				}
				if *p.Spec.Priority < last && *p.Spec.Priority >= groups[0].Priority {
					t.Fatalf("seed %d: %s of priority %d is terminated after group %d", seed, p.Name, *p.Spec.Priority,
						last)
				}
				seen[p.Name] = true
			}
			last = s.Priority
		}
		if len(seen) != len(pods) {
			t.Fatalf("seed %d: got %d of %d pods", seed, len(seen), len(pods))
		}
	}
}
