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

// userRequests counts what users did, and how much of it had its answer: the rest was cut
// off by themselves, or asked while the agent or the runtime was away.
type userRequests struct{ asked, answered map[string]int }

func (v userRequests) summary() string {
	return fmt.Sprintf("asked %v, answered %v", v.asked, v.answered)
}

// runUsers look at pods, read and follow logs, run commands, forward ports, and leave in
// the middle of half of what they do, until the function that it returns is called.
func (h *longChurn) runUsers(stable []string) (stop func()) {
	if h.log.users.asked == nil {
		h.log.users = userRequests{asked: map[string]int{}, answered: map[string]int{}}
	}
	random := rand.New(rand.NewPCG(h.rand.Uint64(), 0)) // its own: how much is asked is a matter of time
	ctx, cancel := context.WithCancel(h.Context())
	var wg sync.WaitGroup
	wg.Go(func() {
		for ctx.Err() == nil {
			one, leave := context.WithTimeout(ctx, time.Duration(50+random.IntN(2000))*time.Millisecond)
			what, err := h.userRequest(one, random, stable[random.IntN(len(stable))])
			leave()
			h.log.users.asked[what]++
			if err == nil {
				h.log.users.answered[what]++
			}
			select {
			case <-ctx.Done():
			case <-time.After(100 * time.Millisecond):
			}
		}
	})
	stop = func() { cancel(); wg.Wait() }
	h.Cleanup(stop) // of a test that fails before
	return stop
}

func (h *longChurn) userRequest(ctx context.Context, random *rand.Rand, pod string) (what string, err error) {
	switch random.IntN(8) {
	case 0:
		return "exec", h.agent.Command(ctx, "exec", pod, "-c", "main", "--", "/bin/testbox", "print", "began", ",", "sleep", "300ms").Run()
	case 1:
		return "attach", h.agent.Command(ctx, "attach", pod, "-c", "main").Run()
	case 2:
		return "logs", h.client.Logs(ctx, nodeapi.LogRequest{Namespace: "default", Pod: pod, Container: "main", Follow: random.IntN(2) == 0}, io.Discard, io.Discard)
	case 3:
		return "port-forward", h.portForward(ctx, pod)
	case 4:
		_, err = h.client.Describe(ctx, "default", pod)
		return "describe", err
	case 5:
		_, err = h.client.Top(ctx, nodeapi.TopRequest{Window: 100 * time.Millisecond})
		return "top", err
	case 6:
		return "watch events", h.client.WatchEvents(ctx, nodeapi.EventsRequest{}, func(nodeapi.EventNotification) error { return nil })
	default:
		_, err = h.client.Timeline(ctx, "default", pod)
		return "timeline", err
	}
}

// portForward asks the pod's web server one thing. It is closed in the middle when ctx
// ends.
func (h *longChurn) portForward(ctx context.Context, pod string) error {
	s, err := h.client.PortForward(ctx, "default", pod, 8080)
	if err != nil {
		return err
	}
	defer s.Close()
	defer context.AfterFunc(ctx, func() { s.Close() })()
	if _, err := io.WriteString(s, "GET /delay?d=100ms HTTP/1.0\r\n\r\n"); err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, s)
	return err
}
