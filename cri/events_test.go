package cri

import (
	"context"
	"errors"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"berth/agent/plan"
	"berth/cri/criconfig"
	"berth/cri/crifake"
)

// TestEventStreamsAreReported expects one report per stream of a runtime with events, and none of a
// runtime without them.
func TestEventStreamsAreReported(t *testing.T) {
	t.Parallel()
	for name, supported := range map[string]bool{"events": true, "no events": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			fake := crifake.New(crifake.Options{Containerd16: !supported})
			t.Cleanup(fake.Close)
			streams, delays := make(chan error, 10), make(chan time.Duration, 10)
			client, err := Dial(t.Context(), Options{
				Conn: fake.Conn(), Node: func() criconfig.Node { return criconfig.Node{Name: "n1"} },
				OnEventStream: func(err error) { streams <- err },
				OnEventDelay:  func(d time.Duration) { delays <- d },
			})
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan error, 1)
			go func() { ended <- client.Events(ctx, func(Event) {}) }()
			if !supported {
				if err := <-ended; plan.KindOf(err) != plan.Unsupported || len(streams) != 0 {
					t.Errorf("got error %v and %d streams", err, len(streams))
				}
				cancel()
				return
			}
			if err := <-streams; err != nil {
				t.Errorf("got error %v", err)
			}
			pod := &corev1.Pod{}
			pod.Namespace, pod.Name, pod.UID, pod.Spec.HostNetwork = "default", "web", "u-1", true
			if _, err := client.RunSandbox(ctx, pod, plan.SandboxConfig{}); err != nil {
				t.Fatal(err)
			}
			<-delays
			fake.Restart()
			if err := <-streams; err == nil || errors.Is(err, context.Canceled) {
				t.Errorf("interrupted stream: got error %v", err)
			}
			if err := <-streams; err != nil {
				t.Errorf("second stream: got error %v", err)
			}
			cancel()
			if err := <-ended; err != nil {
				t.Errorf("Events: %v", err)
			}
		})
	}
}
