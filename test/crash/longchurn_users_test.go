package crash

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"sync"
	"time"

	"berth/nodeapi"
)

// userRequests counts user requests by type, and how many of them succeeded. The others were canceled by
// the user, or were sent while the agent or the runtime was down.
type userRequests struct{ sent, succeeded map[string]int }

func (r userRequests) summary() string {
	return fmt.Sprintf("sent %v, succeeded %v", r.sent, r.succeeded)
}

// runUsers sends user requests (describe, logs, exec, port-forward and others) until stop is called. It
// cancels many of them while they are in progress.
func (h *longChurn) runUsers(stable []string) (stop func()) {
	if h.log.users.sent == nil {
		h.log.users = userRequests{sent: map[string]int{}, succeeded: map[string]int{}}
	}
	random := rand.New(rand.NewPCG(h.rand.Uint64(), 0)) // separate, because the number of requests depends on timing
	ctx, cancel := context.WithCancel(h.Context())
	var wg sync.WaitGroup
	wg.Go(func() {
		for ctx.Err() == nil {
			requestCtx, cancelRequest := context.WithTimeout(ctx, time.Duration(50+random.IntN(2000))*time.Millisecond)
			what, err := h.userRequest(requestCtx, random, stable[random.IntN(len(stable))])
			cancelRequest()
			h.log.users.sent[what]++
			if err == nil {
				h.log.users.succeeded[what]++
			}
			select {
			case <-ctx.Done():
			case <-time.After(100 * time.Millisecond):
			}
		}
	})
	stop = func() { cancel(); wg.Wait() }
	h.Cleanup(stop) // in case the test fails before
	return stop
}

func (h *longChurn) userRequest(ctx context.Context, random *rand.Rand, pod string) (what string, err error) {
	switch random.IntN(8) {
	case 0:
		return "exec", h.agent.Command(ctx, "exec", pod, "-c", "main", "--", "/bin/testbox", "print", "started", ",",
			"sleep", "300ms").Run()
	case 1:
		return "attach", h.agent.Command(ctx, "attach", pod, "-c", "main").Run()
	case 2:
		return "logs", h.client.Logs(ctx, nodeapi.LogRequest{Namespace: "default", Pod: pod, Container: "main",
			Follow: random.IntN(2) == 0}, io.Discard, io.Discard)
	case 3:
		return "port-forward", h.portForward(ctx, pod)
	case 4:
		_, err = h.client.Describe(ctx, "default", pod)
		return "describe", err
	case 5:
		_, err = h.client.Top(ctx, nodeapi.TopRequest{Window: 100 * time.Millisecond})
		return "top", err
	case 6:
		return "watch events", h.client.WatchEvents(ctx, nodeapi.EventsRequest{},
			func(nodeapi.EventNotification) error {
				return nil
			})
	default:
		_, err = h.client.Timeline(ctx, "default", pod)
		return "timeline", err
	}
}

// portForward sends one request to the pod's web server through a port-forward. It closes the stream when
// ctx is canceled.
func (h *longChurn) portForward(ctx context.Context, pod string) error {
	stream, err := h.client.PortForward(ctx, "default", pod, 8080)
	if err != nil {
		return err
	}
	defer stream.Close()
	defer context.AfterFunc(ctx, func() { stream.Close() })()
	if _, err := io.WriteString(stream, "GET /delay?d=100ms HTTP/1.0\r\n\r\n"); err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, stream)
	return err
}
