package agent

import (
	"slices"
	"sync"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"berth/agent/hostfake"
)

// ownerRecorder records the calls of the agent.
type ownerRecorder struct {
	mu              sync.Mutex
	proven, deleted []types.UID
}

func (o *ownerRecorder) Prove(uids ...types.UID) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.proven = append(o.proven, uids...)
	return nil
}

func (o *ownerRecorder) Deleted(uids ...types.UID) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.deleted = append(o.deleted, uids...)
}

func (o *ownerRecorder) calls() (proven, deleted []types.UID) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.Clone(o.proven), slices.Clone(o.deleted)
}

// TestRuntimeProvesOwner: without a store, what the runtime lists belongs to the agent, and only that. Records of
// this release say that the directory of the pod has a mark.
func TestRuntimeProvesOwner(t *testing.T) {
	withHost(t, func(t *testing.T, h *testHost) {
		owner := &ownerRecorder{}
		h.owner = owner
		kept, orphan := hostfake.PodOf("kept", "a"), hostfake.PodOf("orphan", "a")
		l := startAgent(t, h, hostfake.LargeNode(), nil, "file")
		l.desire("file", kept, orphan)
		l.until(time.Minute, "both pods run", func() bool { return l.isRunning(kept)() && l.isRunning(orphan)() })
		l.stop()
		if proven, _ := owner.calls(); len(proven) > 0 {
			t.Errorf("got %v proven by an empty runtime", proven)
		}
		for uid, rec := range l.records {
			if !rec.OwnerMarked {
				t.Errorf("record of %s does not say that its directory is marked", uid)
			}
		}
		l = startAgent(t, h, hostfake.LargeNode(), nil, "file")
		l.desire("file", kept)
		l.until(time.Hour, "the orphan is removed", func() bool { return h.Remaining(orphan.UID) == "" })
		l.until(time.Minute, "the deletion is recorded", func() bool {
			_, deleted := owner.calls()
			return slices.Equal(deleted, []types.UID{orphan.UID})
		})
		proven, _ := owner.calls()
		slices.Sort(proven)
		if !slices.Equal(slices.Compact(proven), []types.UID{kept.UID, orphan.UID}) {
			t.Errorf("got %v proven by the runtime", proven)
		}
	})
}
