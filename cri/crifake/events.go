package crifake

import (
	"cmp"
	"slices"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// follower is one stream of events. One that falls far behind is cut off.
type follower struct {
	events chan *runtimeapi.ContainerEventResponse
}

const followerBuffer = 4096

// GetContainerEvents streams what happens from now on.
func (r *Runtime) GetContainerEvents(_ *runtimeapi.GetEventsRequest, stream runtimeapi.RuntimeService_GetContainerEventsServer) error {
	if r.opts.Containerd16 {
		return status.Error(codes.Unimplemented, "unknown method GetContainerEvents for service runtime.v1.RuntimeService")
	}
	f := &follower{events: make(chan *runtimeapi.ContainerEventResponse, followerBuffer)}
	r.mu.Lock()
	r.followers[f] = true
	r.mu.Unlock()
	defer func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		delete(r.followers, f)
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

// EventSubscribers returns how many follow the events now.
func (r *Runtime) EventSubscribers() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.followers)
}

// emit tells the followers of an event of a container (or the sandbox itself)
// with the state of the whole sandbox.
func (r *Runtime) emit(id string, s *sandbox, kind runtimeapi.ContainerEventType) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.followers) == 0 {
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
	for f := range r.followers {
		select {
		case f.events <- e:
		default:
			close(f.events)
			delete(r.followers, f)
		}
	}
}
