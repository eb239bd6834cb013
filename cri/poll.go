package cri

import (
	"context"
	"hash/maphash"
	"time"

	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Poll lists what the runtime has of ours until ctx ends, which is no error, and
// tells of each pod of which something has come, gone or changed its state since
// the last list. It begins with a Resync. While the runtime is away it tells
// nothing; what has changed meanwhile is told by the next list, after a Resync.
func (c *Client) Poll(ctx context.Context, every time.Duration, tell func(Event)) error {
	seed := maphash.MakeSeed()
	var last map[types.UID]poll
	away := true
	for {
		now, err := c.polls(ctx, seed)
		if err == nil {
			if away {
				tell(Event{Kind: Resync, At: time.Now(), Hint: true, Listed: &Pod{}})
			}
			if last != nil {
				tellChanges(last, now, tell)
			}
			last = now
		}
		away = err != nil
		if !pause(ctx, every) {
			return nil
		}
	}
}

func tellChanges(last, now map[types.UID]poll, tell func(Event)) {
	at := time.Now()
	for uid, p := range now {
		if was, ok := last[uid]; !ok || was.print != p.print {
			p.sort()
			tell(Event{UID: uid, Kind: Changed, At: at, Hint: true, Listed: &p.Pod})
		}
	}
	for uid := range last {
		if _, ok := now[uid]; !ok {
			tell(Event{UID: uid, Kind: Deleted, At: at, Hint: true, Listed: &Pod{}})
		}
	}
}

// poll is a pod in one list. Its print changes with the set of its sandboxes
// and containers and with their states: the sum of one hash each, so that the
// order of the list does not matter.
type poll struct {
	Pod
	print uint64
}

func (c *Client) polls(ctx context.Context, seed maphash.Seed) (map[types.UID]poll, error) {
	sandboxes, err := c.allSandboxes(ctx, &runtimeapi.PodSandboxFilter{LabelSelector: ownSelector()})
	if err != nil {
		return nil, err
	}
	containers, err := c.allContainers(ctx, &runtimeapi.ContainerFilter{LabelSelector: ownSelector()})
	if err != nil {
		return nil, err
	}
	type object struct {
		id    string
		state int32
	}
	out := make(map[types.UID]poll, len(sandboxes))
	for _, s := range sandboxes {
		uid := types.UID(s.Labels[labelPodUID])
		p := out[uid]
		p.print += maphash.Comparable(seed, object{s.Id, int32(s.State)})
		p.Sandboxes = append(p.Sandboxes, c.judged(listedSandbox(s), s.Labels, s.Annotations))
		out[uid] = p
	}
	for _, l := range containers {
		uid := types.UID(l.Labels[labelPodUID])
		p := out[uid]
		p.print += maphash.Comparable(seed, object{l.Id, int32(l.State)})
		p.Containers = append(p.Containers, listedContainer(l))
		out[uid] = p
	}
	return out, nil
}
