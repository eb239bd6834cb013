package crifake

import (
	"cmp"
	"slices"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// subscriber is one stream of events. A stream that falls far behind is closed.
type subscriber struct {
	events chan *runtimeapi.ContainerEventResponse
}

const subscriberBuffer = 4096

// GetContainerEvents streams events from now on.
func (r *Runtime) GetContainerEvents(_ *runtimeapi.GetEventsRequest,
	stream runtimeapi.RuntimeService_GetContainerEventsServer) error {
	if r.opts.Containerd16 {
		return status.Error(codes.Unimplemented,
			"unknown method GetContainerEvents for service runtime.v1.RuntimeService")
	}
	f := &subscriber{events: make(chan *runtimeapi.ContainerEventResponse, subscriberBuffer)}
	r.mu.Lock()
	r.subscribers[f] = true
	r.mu.Unlock()
	defer func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		delete(r.subscribers, f)
	}()
	if err := stream.SendHeader(nil); err != nil {
		return err
	}
	for {
		select {
		case <-stream.Context().Done():
			return stream.Context().Err()
		case e, ok := <-f.events:
			if !ok {
				return errCut
			}
			if err := stream.Send(e); err != nil {
				return err
			}
		}
	}
}

// EventSubscribers returns the number of open event streams.
func (r *Runtime) EventSubscribers() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.subscribers)
}

// emit sends an event of a container or the sandbox itself to the subscribers, with the state of
// the whole sandbox.
func (r *Runtime) emit(id string, s *sandbox, kind runtimeapi.ContainerEventType) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.subscribers) == 0 {
		return
	}
	e := &runtimeapi.ContainerEventResponse{ContainerId: id, ContainerEventType: kind, CreatedAt: time.Now().UnixNano()}
	if r.sandboxes[s.id] != nil {
		e.PodSandboxStatus = s.status()
	}
	for _, c := range r.containers {
		if c.sandbox == s {
			e.ContainersStatuses = append(e.ContainersStatuses, r.statusOf(c))
		}
	}
	slices.SortFunc(e.ContainersStatuses, func(a, b *runtimeapi.ContainerStatus) int { return cmp.Compare(a.Id, b.Id) })
	for f := range r.subscribers {
		select {
		case f.events <- e:
		default:
			close(f.events)
			delete(r.subscribers, f)
		}
	}
}
