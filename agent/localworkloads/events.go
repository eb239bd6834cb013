package localworkloads

import (
	"maps"

	"k8s.io/apimachinery/pkg/types"
)

// EventsPrefix is the prefix of the keys under which the local store has the events of workloads.
const EventsPrefix = "workload-events/"

// restoreEvents restores the events of an earlier run, and deletes those of objects that no longer exist.
func (s *Source) restoreEvents() {
	left := maps.Clone(s.opt.StoredEvents)
	if s.reconciler != nil {
		for _, entry := range s.reconciler.store.entries {
			if entry.object == nil {
				continue
			}
			key := eventsKey(entry.object.GetUID())
			saved, found := left[key]
			delete(left, key)
			if !found {
				continue
			}
			if err := s.opt.RestoreEvents(referenceTo(entry.object), saved); err != nil {
				s.opt.Log.Warn("stored events unreadable", "workloadUID", string(entry.object.GetUID()), "err", err)
			}
		}
	}
	for key := range left {
		left[key] = nil
	}
	if len(left) > 0 {
		s.opt.Store.PutNodeValues(left)
	}
}

// saveEvents adds the events that the reconciler has recorded to the changes for the local store. The caller holds the
// lock.
func (s *Source) saveEvents(changes map[string][]byte) {
	for uid, exists := range s.reconciler.events {
		var saved []byte
		if exists {
			var err error
			if saved, err = s.opt.SaveEvents(uid); err != nil {
				s.opt.Log.Debug("events not encoded", "workloadUID", string(uid), "err", err)
				continue
			}
		}
		changes[eventsKey(uid)] = saved
	}
	clear(s.reconciler.events)
}

func eventsKey(uid types.UID) string { return EventsPrefix + string(uid) }
