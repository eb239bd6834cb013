package nodeservices

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"berth/services"
	"berth/services/enablement"
	"berth/services/policy"
)

// server is what the API server answers.
type server struct {
	version   string
	publishes bool
	err       error
}

// TestControlPlaneChanged: the agent restarts if the API server leads to other decisions, and only then.
func TestControlPlaneChanged(t *testing.T) {
	t.Parallel()
	const berth, other = "v1.37.2" + enablement.VersionSuffix, "v1.37.2"
	unreachable := errors.New("connection refused")
	for _, c := range []struct {
		name             string
		services, policy string
		standalone       bool
		first            server
		then             []server // at one check after another, the last one stays
		want             bool
	}{
		{"the same", "auto", "auto", false, server{berth, true, nil}, []server{{berth, true, nil}}, false},
		{"another version", "auto", "auto", false, server{berth, true, nil},
			[]server{{"v1.38.0+berth", true, nil}}, false},
		{"addresses published", "auto", "auto", false, server{berth, false, nil}, []server{{berth, true, nil}}, true},
		{"addresses not published any more", "auto", "auto", false, server{berth, true, nil},
			[]server{{berth, false, nil}}, true},
		{"addresses published, turned on", "auto", "on", false, server{berth, false, nil},
			[]server{{berth, true, nil}}, true},
		{"addresses published, turned off", "auto", "off", false, server{berth, false, nil},
			[]server{{berth, true, nil}}, false},
		{"to berth-control", "auto", "off", false, server{other, false, nil}, []server{{berth, true, nil}}, true},
		{"from berth-control", "auto", "off", false, server{berth, true, nil}, []server{{other, false, nil}}, true},
		{"settings do not depend on it", "on", "off", false, server{berth, true, nil}, []server{{other, false, nil}},
			false},
		{"replicas differ for a while", "auto", "auto", false, server{berth, false, nil},
			[]server{{berth, true, nil}, {berth, false, nil}, {berth, true, nil}, {berth, false, nil}}, false},
		{"unreachable", "auto", "auto", false, server{berth, true, nil}, []server{{"", false, unreachable}}, false},
		{"standalone", "auto", "off", true, server{"", false, unreachable}, []server{{other, false, nil}}, false},
	} {
		synctest.Test(t, func(t *testing.T) {
			now := c.first
			s := New(Options{
				ProxySetting: c.services, DNSSetting: c.services, Standalone: c.standalone, Store: services.NewStore(),
				ServerVersion: func(context.Context) (string, error) { return now.version, now.err },
				Log:           slog.New(slog.DiscardHandler),
			})
			o := s.enablement()
			o.Remember = func(string) {}
			ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
			defer cancel()
			decision, err := enablement.Wait(ctx, o)
			if err != nil {
				t.Fatal(err)
			}
			s.decision.Store(&decision)
			p := NewPolicies(PolicyOptions{
				Setting: c.policy, Store: policy.NewStore(),
				Publishes: func(context.Context) (bool, error) {
					answer := now
					if len(c.then) > 1 {
						now, c.then = c.then[1], c.then[1:]
					}
					return answer.publishes, answer.err
				},
				Put: func(string, []byte) {}, Log: slog.New(slog.DiscardHandler),
			})
			if p.current = fromPods; now.publishes {
				p.current = fromAddresses
			}
			close(p.decided)
			now = c.then[0]
			start := time.Now()
			got := ControlPlaneChanged(ctx, s, p)
			if got != c.want {
				t.Errorf("%s: got %t, want %t", c.name, got, c.want)
			}
			if took := time.Since(start); got && took > recheckCount*(recheckInterval+recheckInterval/4) {
				t.Errorf("%s: after %s", c.name, took)
			}
		})
	}
}
