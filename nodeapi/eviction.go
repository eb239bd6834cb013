package nodeapi

import (
	"context"
	"net/http"
	"net/url"

	"k8s.io/apimachinery/pkg/types"
)

// EvictionPreview tells who would have to go if the node ran short, now.
type EvictionPreview struct {
	Signals []EvictionSignal `json:"signals"`
	Exempt  []ExemptPod      `json:"staying,omitempty"` // pods that never go for the node's sake
}

// EvictionSignal is what the node may run short of, and the order in which pods
// would go for it.
type EvictionSignal struct {
	Signal        string         `json:"signal"`        // memory.available, …
	Message       string         `json:"state"`         // one sentence with the figures
	UnderPressure bool           `json:"short"`         // the node is under this pressure
	Resource      string         `json:"resource"`      // what counts of pods: memory, ephemeral-storage, inodes, pids
	Requestable   bool           `json:"requestsCount"` // whether pods can request it
	Order         []EvictionRank `json:"order"`         // who goes first is first
}

// EvictionRank is a pod in the order of going. Amounts are in bytes or pieces; the
// texts are those of the event that an evicted pod has.
type EvictionRank struct {
	Namespace      string    `json:"namespace"`
	Name           string    `json:"name"`
	UID            types.UID `json:"uid"`
	Known          bool      `json:"known"`             // false: its use could not be measured
	Partial        bool      `json:"partial,omitempty"` // it may have more: not all could be counted in time
	Used           int64     `json:"used"`
	Requested      int64     `json:"requested"`
	UsedText       string    `json:"usedText"`
	RequestedText  string    `json:"requestedText"`
	ExceedsRequest bool      `json:"exceedsRequest"`
	Priority       int32     `json:"priority"`
}

// ExemptPod is a pod that nobody evicts, and why.
type ExemptPod struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	Reason    string `json:"why"`
}

func (s *server) eviction(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := s.streaming(r) // measuring may take long
	defer cancel()
	e, err := s.h.Eviction(ctx, r.URL.Query().Get("signal"))
	reply(w, e, err)
}

// Eviction asks who would have to go for a signal; empty: for those that matter
// now, or else for memory, disk and processes.
func (c *Client) Eviction(ctx context.Context, signal string) (EvictionPreview, error) {
	q := url.Values{}
	if signal != "" {
		q.Set("signal", signal)
	}
	return fetch[EvictionPreview](ctx, c, question{method: http.MethodGet, path: "/v1/eviction", query: q})
}
