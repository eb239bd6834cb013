package nodeservices

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"

	"berth/services/enablement"
	"berth/services/policy"
)

// TestSourceOfPolicyAddresses: the server decides, and without its answer what an earlier process has found.
func TestSourceOfPolicyAddresses(t *testing.T) {
	t.Parallel()
	unreachable := errors.New("connection refused")
	for _, c := range []struct {
		name, setting, remembered string
		published                 bool
		err                       error
		want                      string
		enabled                   bool
		after                     time.Duration
	}{
		{"auto with berth-control", enablement.Auto, "", true, nil, fromAddresses, true, 0},
		{"auto with another server", enablement.Auto, "", false, nil, fromPods, false, 0},
		{"on with another server", enablement.On, "", false, nil, fromPods, true, 0},
		{"on with berth-control", enablement.On, "", true, nil, fromAddresses, true, 0},
		{"server replaced", enablement.Auto, fromAddresses, false, nil, fromPods, false, 0},
		{"server not reachable", enablement.Auto, fromAddresses, false, unreachable, fromAddresses, true,
			decisionTimeout},
		{"server never reached", enablement.Auto, "", false, unreachable, "", false, time.Minute},
	} {
		synctest.Test(t, func(t *testing.T) {
			stored := map[string][]byte{}
			p := NewPolicies(PolicyOptions{
				Setting: c.setting, Store: policy.NewStore(),
				Stored:    map[string][]byte{keySource: []byte(c.remembered)},
				Publishes: func(context.Context) (bool, error) { return c.published, c.err },
				Put:       func(key string, value []byte) { stored[key] = value },
				Log:       slog.New(slog.DiscardHandler),
			})
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			start := time.Now()
			got, err := p.source(ctx)
			if got != c.want || (err != nil) != (c.want == "") || time.Since(start) != c.after {
				t.Errorf("%s: got %q, %v after %s, want %q after %s", c.name, got, err, time.Since(start), c.want,
					c.after)
			}
			if enabled(c.setting, got) != c.enabled {
				t.Errorf("%s: enabled is not %t", c.name, c.enabled)
			}
			if c.err == nil && string(stored[keySource]) != c.want {
				t.Errorf("%s: stored %q", c.name, stored[keySource])
			}
		})
	}
}

// TestPoliciesTurnedOff: the stored input goes, and pods do not wait.
func TestPoliciesTurnedOff(t *testing.T) {
	t.Parallel()
	stored := map[string][]byte{policy.CheckpointPrefix + "synced": []byte("{}"),
		policy.CheckpointPrefix + "pod/n/p": nil}
	p := NewPolicies(PolicyOptions{
		Setting: enablement.Off, Store: policy.NewStore(), Restored: maps.Clone(stored),
		PutAll: func(values map[string][]byte) {
			for key, value := range values {
				if value == nil {
					delete(stored, key)
				}
			}
		},
		OnProblem: func(_ *corev1.Pod, message string) { t.Error(message) }, Log: slog.New(slog.DiscardHandler),
	})
	p.PodIPsChanged(&corev1.Pod{}, []string{"10.0.0.1"})
	if err := p.Run(t.Context()); err != nil || len(stored) > 0 {
		t.Errorf("error %v, stored %v", err, stored)
	}
	if p.Enforcer() != nil || p.Explain("uid") != nil {
		t.Error("policies are enforced")
	}
}

// TestPodsWaitForDecision: a pod does not wait for a server that was never reached, and waits for one that an
// earlier process knew.
func TestPodsWaitForDecision(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, remembered string
		problems         int
		after            time.Duration
	}{
		{"nothing known", "", 0, decisionTimeout},
		{"policies were not enforced", fromPods, 0, installTimeout},
		{"policies were enforced", fromAddresses, 1, installTimeout},
	} {
		synctest.Test(t, func(t *testing.T) {
			problems := 0
			p := NewPolicies(PolicyOptions{
				Setting: enablement.Auto, Store: policy.NewStore(),
				Stored:    map[string][]byte{keySource: []byte(c.remembered)},
				OnProblem: func(*corev1.Pod, string) { problems++ }, Log: slog.New(slog.DiscardHandler),
			})
			start := time.Now()
			p.PodIPsChanged(&corev1.Pod{}, []string{"10.0.0.1"})
			if problems != c.problems || time.Since(start) != c.after {
				t.Errorf("%s: %d problems after %s, want %d after %s", c.name, problems, time.Since(start), c.problems,
					c.after)
			}
		})
	}
}
