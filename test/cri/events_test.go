package cri_test

import (
	"testing"
	"time"

	"berth/cri"
	"berth/cri/crifake"
)

// TestEventsResyncFollowsSubscription: when Events reports a Resync, the stream has started, even if
// a busy runtime starts it only after it has responded to later calls. Events after the Resync are
// not lost.
func TestEventsResyncFollowsSubscription(t *testing.T) {
	t.Parallel()
	for _, late := range []time.Duration{0, 50 * time.Millisecond} {
		fake := crifake.New(crifake.Options{Latency: map[string]time.Duration{"GetContainerEvents": late}})
		h := serveFake(t, fake)
		h.client = h.dial(t)
		pod := h.pod(t, "sleep")
		events, synced := watchEvents(t, pod.UID, h.client.Events)
		<-synced
		if fake.EventSubscribers() != 1 {
			t.Fatalf("stream started after %s: %d subscribers at the Resync", late, fake.EventSubscribers())
		}
		h.sandbox(t, pod)
		waitForEvent(t, events, "sandbox is ready", func(e cri.Event) bool { return e.Kind == cri.Started })
	}
}
