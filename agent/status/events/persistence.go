package events

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// eventsJSON is version 1 of the encoding of a pod's events.
type eventsJSON struct {
	Version int         `json:"version"`
	Events  []eventJSON `json:"events"` // ordered by last occurrence
}

type eventJSON struct {
	Type    string    `json:"type"`
	Reason  string    `json:"reason"`
	Message string    `json:"message,omitempty"`
	Path    string    `json:"path,omitempty"` // field path of the container
	Count   int32     `json:"count"`
	First   time.Time `json:"first"`
	Last    time.Time `json:"last"`
	ID      uint64    `json:"id"`    // of the first occurrence
	Order   uint64    `json:"order"` // of the last occurrence, among all pods
}

// Save returns the encoded events of a pod for Restore, or nil if there are none.
func (r *Recorder) Save(uid types.UID) ([]byte, error) {
	out := eventsJSON{Version: 1}
	r.mu.Lock()
	if p := r.pods[uid]; p != nil {
		for _, x := range p.list {
			out.Events = append(out.Events, eventJSON{Type: x.typ, Reason: x.reason, Message: x.message, Path: x.path,
				Count: x.count, First: wallTime(x.first), Last: wallTime(x.last), ID: x.id, Order: x.version})
		}
	}
	r.mu.Unlock()
	if len(out.Events) == 0 {
		return nil, nil
	}
	return json.Marshal(out)
}

// Restore adds saved events of a pod with their names and counts before the events recorded since.
// Subscribers are not notified.
func (r *Recorder) Restore(ref PodRef, saved []byte) error {
	var in eventsJSON
	if err := json.Unmarshal(saved, &in); err != nil {
		return fmt.Errorf("read events: %w", err)
	}
	if in.Version != 1 {
		return fmt.Errorf("read events: unknown version %d", in.Version)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	p := r.pods[ref.UID]
	if p == nil {
		p = &podEvents{ref: ref}
		r.pods[ref.UID] = p
	}
	var old []*entry
	for _, x := range in.Events {
		r.seq = max(r.seq, x.ID, x.Order)
		message := truncate(x.Message, MaxMessageBytes)
		old = append(old, &entry{
			typ: cmp.Or(x.Type, "Normal"), reason: truncate(x.Reason, 128), message: message, path: x.Path,
			similarity: similarityHash(message),
			count:      max(x.Count, 1), first: x.First, last: x.Last, id: x.ID, version: x.Order,
		})
	}
	p.list = slices.Concat(old, p.list)
	for _, x := range old {
		p.bytes += x.size()
	}
	p.enforceLimits(r.opt.MaxPerPod, r.opt.MaxBytesPerPod)
	return nil
}
