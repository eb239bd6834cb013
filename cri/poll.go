package cri

import (
	"context"
	"hash/maphash"
	"time"

	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Poll lists berth's objects until ctx ends, which is not an error, and calls handle for each pod
// of which an object was created, deleted or changed its state since the last list. It starts with
// a Resync. It reports nothing while the runtime is unavailable. Changes of that time are reported
// by the next list, after a Resync.
func (c *Client) Poll(ctx context.Context, every time.Duration, handle func(Event)) error {
	seed := maphash.MakeSeed()
	var last map[types.UID]podSnapshot
	unavailable := true
	for {
		now, err := c.snapshot(ctx, seed)
		if err == nil {
			if unavailable {
				handle(Event{Kind: Resync, At: time.Now(), Hint: true, Listed: &Pod{}})
			}
			if last != nil {
				emitChanges(last, now, handle)
			}
			last = now
		}
		unavailable = err != nil
		if !sleep(ctx, every) {
			return nil
		}
	}
}

func emitChanges(last, now map[types.UID]podSnapshot, handle func(Event)) {
	at := time.Now()
	for uid, p := range now {
		if was, ok := last[uid]; !ok || was.fingerprint != p.fingerprint {
			p.sort()
			handle(Event{UID: uid, Kind: Changed, At: at, Hint: true, Listed: &p.Pod})
		}
	}
	for uid := range last {
		if _, ok := now[uid]; !ok {
			handle(Event{UID: uid, Kind: Deleted, At: at, Hint: true, Listed: &Pod{}})
		}
	}
}

// podSnapshot is a pod in one list. Its fingerprint changes with the set of its sandboxes and
// containers and with their states. It is the sum of one hash each, so the order of the list does
// not matter.
type podSnapshot struct {
	Pod
	fingerprint uint64
}

func (c *Client) snapshot(ctx context.Context, seed maphash.Seed) (map[types.UID]podSnapshot, error) {
	sandboxes, err := c.listSandboxes(ctx, &runtimeapi.PodSandboxFilter{LabelSelector: c.adoptions.selector()})
	if err != nil {
		return nil, err
	}
	containers, err := c.listContainers(ctx, &runtimeapi.ContainerFilter{LabelSelector: c.adoptions.selector()})
	if err != nil {
		return nil, err
	}
	type object struct {
		id    string
		state int32
	}
	out := make(map[types.UID]podSnapshot, len(sandboxes))
	for _, s := range sandboxes {
		uid := types.UID(s.Labels[labelPodUID])
		p := out[uid]
		p.fingerprint += maphash.Comparable(seed, object{s.Id, int32(s.State)})
		p.Sandboxes = append(p.Sandboxes, c.withNetworkState(sandboxFromList(s), s.Labels, s.Annotations))
		out[uid] = p
	}
	for _, l := range containers {
		uid := types.UID(l.Labels[labelPodUID])
		p := out[uid]
		p.fingerprint += maphash.Comparable(seed, object{l.Id, int32(l.State)})
		p.Containers = append(p.Containers, containerFromList(l))
		out[uid] = p
	}
	return out, nil
}
