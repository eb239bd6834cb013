package allocator

import (
	"testing"

	"berth/agent/plan"
)

// A census tells what a resize and a replacement would be answered, and changes nothing.
func TestACensusTellsOfAResize(t *testing.T) {
	inRoom(t, Config{Node: nodeOf("4", "10"), StartSlots: 10}, func(t *testing.T, l *lobby) {
		p, q := needs("p", "1"), needs("q", "2")
		l.ask(p, false)
		l.ask(q, false)
		l.last(q)
		c, err := l.Snapshot(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for cpu, want := range map[string]plan.VerdictState{"2": plan.Admitted, "3": plan.Wait, "5": plan.Rejected} {
			if v := c.CheckResize(p, needs("p", cpu)); v.State != want {
				t.Errorf("to %s: %+v", cpu, v)
			}
		}
		if v := c.CheckResize(p, needs("p", "5")); v.Message != "Node didn't have enough capacity: cpu, requested: 5000, capacity: 4000" {
			t.Errorf("to what never can be had: %s", v.Message)
		}
		if v := c.CheckResize(p, podOf("p", "a")); v.State != plan.Rejected {
			t.Errorf("to nothing: %+v", v)
		}
		if c.Rejection(needs("r", "2")) == "" || c.Without(p).Rejection(needs("r", "2")) != "" || c.Rejection(needs("r", "2")) == "" {
			t.Error("the room of a pod that is replaced does not count, or counts twice")
		}
	})
}
