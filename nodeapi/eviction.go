package nodeapi

import (
	"context"
	"net/http"
	"net/url"

	"k8s.io/apimachinery/pkg/types"
)

// EvictionPreview is the current eviction ranking of the pods for each signal.
type EvictionPreview struct {
	Signals []EvictionSignal `json:"signals"`
	Exempt  []ExemptPod      `json:"exempt,omitempty"` // critical pods, which are never evicted
}

// EvictionSignal is an eviction signal with the ranking of the pods for it.
type EvictionSignal struct {
	Signal        string `json:"signal"`        // memory.available, …
	Message       string `json:"message"`       // one sentence with the current values
	UnderPressure bool   `json:"underPressure"` // the node is under this pressure
	// what is compared between pods: memory, ephemeral-storage, inodes, pids
	Resource    string         `json:"resource"`
	Requestable bool           `json:"requestable"` // whether pods can request the resource
	Order       []EvictionRank `json:"order"`       // in eviction order
}

// EvictionRank is a pod in the eviction order. Amounts are in bytes, or counts for inodes and
// processes. The texts are formatted as in the event of an evicted pod.
type EvictionRank struct {
	Namespace      string    `json:"namespace"`
	Name           string    `json:"name"`
	UID            types.UID `json:"uid"`
	Known          bool      `json:"known"`             // false: usage could not be measured
	Partial        bool      `json:"partial,omitempty"` // a lower bound: not everything could be counted in time
	Used           int64     `json:"used"`
	Requested      int64     `json:"requested"`
	UsedText       string    `json:"usedText"`
	RequestedText  string    `json:"requestedText"`
	ExceedsRequest bool      `json:"exceedsRequest"`
	Priority       int32     `json:"priority"`
}

// ExemptPod is a pod that is never evicted.
type ExemptPod struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	Reason    string `json:"reason"`
}

func (s *server) eviction(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := s.streaming(r) // measuring can take long
	defer cancel()
	e, err := s.h.Eviction(ctx, r.URL.Query().Get("signal"))
	reply(w, e, err)
}

// Eviction returns the eviction order for a signal. With an empty signal it returns the order for
// the active signals or, if none is active, for memory, disk and processes.
func (c *Client) Eviction(ctx context.Context, signal string) (EvictionPreview, error) {
	q := url.Values{}
	if signal != "" {
		q.Set("signal", signal)
	}
	return fetch[EvictionPreview](ctx, c, request{method: http.MethodGet, path: "/v1/eviction", query: q})
}
