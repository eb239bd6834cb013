package cri

import (
	"context"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/agent/plan"
	"berth/cri/criconfig"
)

// EventKind says what has happened.
type EventKind int

const (
	Created EventKind = iota + 1 // a container or sandbox was made
	Started
	Stopped
	Deleted
	Changed // something of the pod is not as it was
	Resync  // anything may have happened, to any pod: UID is empty
)

// Event is a hint that something of a pod has changed.
type Event struct {
	UID  types.UID
	Kind EventKind
	At   time.Time // when the runtime noticed it

	// Sandbox and Containers are one sandbox with all containers in it as they
	// were when the event was made, which may be older than what is known by
	// now: a container never goes back from Running to Created, nor from Exited
	// to anything. Of other sandboxes of the pod they say nothing.
	Sandbox    *plan.Sandbox
	Containers []plan.Container

	// Hint says that nothing but the UID can be relied on: look at the pod.
	Hint bool

	// Listed is the whole pod as a list showed it, see PodMeta; empty: it is
	// gone. Only Poll gives it, with its Resync an empty one.
	Listed *Pod
}

// Pauses between tries to follow the events of a runtime that is away.
const (
	minEventPause = 100 * time.Millisecond
	maxEventPause = 5 * time.Second
)

// Events follows the runtime's events until ctx ends, which is no error, and
// tells them one at a time on this goroutine. The runtime waits for slow
// followers with everything it does, so tell must not block. Whenever the
// stream begins, anew too, a Resync is told. A runtime that has no events is an
// error of kind plan.Unsupported; Poll serves there.
func (c *Client) Events(ctx context.Context, tell func(Event)) error {
	wait := minEventPause
	for {
		began := time.Now()
		err := mapError(ctx, verbEvents, "", c.follow(ctx, tell))
		switch {
		case ctx.Err() != nil:
			return nil //nolint:nilerr // the end that was asked for
		case plan.KindOf(err) == plan.Unsupported:
			return err
		case time.Since(began) > maxEventPause:
			wait = minEventPause
		}
		if !pause(ctx, wait) {
			return nil
		}
		wait = min(2*wait, maxEventPause)
	}
}

// follow tells the events of one stream until it breaks.
func (c *Client) follow(ctx context.Context, tell func(Event)) error {
	var header sync.WaitGroup
	defer header.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := c.runtime.GetContainerEvents(ctx, &runtimeapi.GetEventsRequest{})
	if err != nil {
		return err
	}
	begun := make(chan struct{})
	header.Go(func() {
		defer close(begun)
		_, _ = stream.Header() // what is wrong with the stream, Recv says
	})
	if _, _, err := c.Version(ctx); err != nil { // it is there at all
		return err
	}
	takenUp(ctx, begun)
	tell(Event{Kind: Resync, At: time.Now(), Hint: true})
	for {
		resp, err := stream.Recv()
		if err != nil {
			return err
		}
		if e, ok := c.event(ctx, resp); ok {
			tell(e)
		}
	}
}

// takeUp is how long a runtime is given to take up a stream whose beginning it
// does not announce.
const takeUp = 200 * time.Millisecond

// takenUp waits until the runtime has taken the stream up: what happens before
// that is told to nobody. A server works on its calls side by side, so the answer
// to a later call proves nothing of an earlier one. The header of the stream does;
// but containerd sends it with its first event only, so some time must do there.
func takenUp(ctx context.Context, begun <-chan struct{}) {
	late := time.NewTimer(takeUp)
	defer late.Stop()
	select {
	case <-begun:
	case <-late.C:
	case <-ctx.Done():
	}
}

// event reads an event; not ok if it is not about an object of ours.
func (c *Client) event(ctx context.Context, resp *runtimeapi.ContainerEventResponse) (Event, bool) {
	e := Event{Kind: eventKind(resp.GetContainerEventType()), At: nanos(resp.GetCreatedAt())}
	status := resp.GetPodSandboxStatus()
	if status != nil {
		own, ok := criconfig.ParseSandbox(status.Labels, status.Annotations)
		if !ok {
			return Event{}, false
		}
		e.UID = own.UID
		seen, _ := seenSandbox(status)
		seen = c.judged(seen, status.Labels, status.Annotations)
		e.Sandbox = &seen
	}
	for _, s := range resp.GetContainersStatuses() {
		own, ok := criconfig.ParseContainer(s.GetLabels(), s.GetAnnotations())
		if !ok {
			continue
		}
		e.UID = own.UID
		if seen, ok := c.seen(ctx, s, status.GetId()); ok && status != nil {
			e.Containers = append(e.Containers, seen)
		}
	}
	// Without its sandbox's status an event comes from a pod that is going away.
	e.Hint = status == nil
	return e, e.UID != ""
}

func eventKind(t runtimeapi.ContainerEventType) EventKind {
	switch t {
	case runtimeapi.ContainerEventType_CONTAINER_CREATED_EVENT:
		return Created
	case runtimeapi.ContainerEventType_CONTAINER_STARTED_EVENT:
		return Started
	case runtimeapi.ContainerEventType_CONTAINER_STOPPED_EVENT:
		return Stopped
	case runtimeapi.ContainerEventType_CONTAINER_DELETED_EVENT:
		return Deleted
	}
	return Changed
}
