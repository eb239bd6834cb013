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

// EventKind is the type of an event.
type EventKind int

const (
	Created EventKind = iota + 1 // a container or sandbox was created
	Started
	Stopped
	Deleted
	Changed // the state of the pod changed
	Resync  // any pod may have changed; the UID is empty
)

// Event is a hint that a pod has changed.
type Event struct {
	UID  types.UID
	Kind EventKind
	At   time.Time // when the runtime recorded it

	// Sandbox and Containers are one sandbox and all of its containers at the time of the event,
	// which may be older than the known state: a container never goes back from Running to Created,
	// nor from Exited to any state. They do not cover other sandboxes of the pod.
	Sandbox    *plan.Sandbox
	Containers []plan.Container

	// Hint means that only the UID is reliable and the pod must be observed.
	Hint bool

	// Listed is the whole pod as returned by a list, see PodMeta. Empty: the pod does not exist.
	// Only Poll sets it, to an empty Pod for a Resync.
	Listed *Pod
}

// Delays between attempts to watch the events of an unavailable runtime.
const (
	minEventPause = 100 * time.Millisecond
	maxEventPause = 5 * time.Second
)

// Events watches the runtime's events until ctx ends, which is not an error. It calls handle
// sequentially on the caller's goroutine. The runtime blocks on slow subscribers, so handle must
// not block. Every time the stream starts, handle receives a Resync. If the runtime has no events,
// the error has kind plan.Unsupported: use Poll instead.
func (c *Client) Events(ctx context.Context, handle func(Event)) error {
	wait := minEventPause
	for {
		startedAt := time.Now()
		err := mapError(ctx, verbEvents, "", c.streamEvents(ctx, handle))
		switch {
		case ctx.Err() != nil:
			return nil //nolint:nilerr // the caller canceled
		case plan.KindOf(err) == plan.Unsupported:
			return err
		case time.Since(startedAt) > maxEventPause:
			wait = minEventPause
		}
		c.onEventStream(err)
		if !sleep(ctx, wait) {
			return nil
		}
		wait = min(2*wait, maxEventPause)
	}
}

// streamEvents handles the events of one stream until the stream breaks.
func (c *Client) streamEvents(ctx context.Context, handle func(Event)) error {
	var header sync.WaitGroup
	defer header.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := c.runtime.GetContainerEvents(ctx, &runtimeapi.GetEventsRequest{})
	if err != nil {
		return err
	}
	started := make(chan bool, 1)
	header.Go(func() {
		defer close(started)
		h, err := stream.Header() // Recv returns the error of the stream
		started <- err == nil && h != nil
	})
	if _, _, err := c.Version(ctx); err != nil { // the runtime is reachable
		return err
	}
	if waitStreamStarted(ctx, started) {
		c.onEventStream(nil)
	}
	handle(Event{Kind: Resync, At: time.Now(), Hint: true})
	for {
		resp, err := stream.Recv()
		if err != nil {
			return err
		}
		c.onEventDelay(time.Since(timeFromNanos(resp.GetCreatedAt())))
		if e, ok := c.parseEvent(ctx, resp); ok {
			handle(e)
		}
	}
}

// streamStartTimeout bounds the wait for a stream whose start the runtime does not announce.
const streamStartTimeout = 200 * time.Millisecond

// waitStreamStarted waits until the runtime has started the stream: events before that are lost. A
// server handles calls concurrently, so the response to a later call proves nothing about an
// earlier one. The header of the stream does, but containerd sends it only with the first event, so
// a short delay has to be enough in that case. It returns false if the stream has ended already, such as
// that of a runtime without events.
func waitStreamStarted(ctx context.Context, started <-chan bool) bool {
	late := time.NewTimer(streamStartTimeout)
	defer late.Stop()
	select {
	case ok := <-started:
		return ok
	case <-late.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// parseEvent converts an event. ok is false if it is not about an object that berth created.
func (c *Client) parseEvent(ctx context.Context, resp *runtimeapi.ContainerEventResponse) (Event, bool) {
	e := Event{Kind: eventKind(resp.GetContainerEventType()), At: timeFromNanos(resp.GetCreatedAt())}
	status := resp.GetPodSandboxStatus()
	if status != nil {
		c.adoptSandboxStatus(status)
		own, ok := criconfig.ParseSandbox(status.Labels, status.Annotations)
		if !ok || !c.owns(status.Labels) {
			return Event{}, false
		}
		e.UID = own.UID
		seen, _ := sandboxFromStatus(status)
		seen = c.withNetworkState(seen, status.Labels, status.Annotations)
		e.Sandbox = &seen
	}
	for _, s := range resp.GetContainersStatuses() {
		c.adoptContainerStatus(s)
		own, ok := criconfig.ParseContainer(s.GetLabels(), s.GetAnnotations())
		if !ok || !c.owns(s.GetLabels()) {
			continue
		}
		e.UID = own.UID
		if seen, ok := c.observedContainer(ctx, s, status.GetId()); ok && status != nil {
			e.Containers = append(e.Containers, seen)
		}
	}
	// An event without a sandbox status comes from a pod that is being removed.
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
