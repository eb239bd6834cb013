package ownership

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"berth/cri/criconfig"
)

// StoreKey is the key of State in the local store.
const StoreKey = "ownership"

// State is the persistent state of hand-overs between the kubelet and berth.
type State struct {
	// Adopted pods were created by the kubelet and belong to berth.
	Adopted map[types.UID]Adoption `json:"adopted,omitempty"`
	// Released pods were handed over to the kubelet, even if berth created their objects.
	Released map[types.UID]bool `json:"released,omitempty"`
}

// Adoption records that a pod that the kubelet created belongs to berth.
type Adoption struct {
	Namespace string    `json:"namespace"`
	Name      string    `json:"name"`
	At        time.Time `json:"at"`
	// SourceUID is the UID that berth gives the static pod of the same file. It changes with the file.
	// Empty: the pod is not a static pod.
	SourceUID types.UID          `json:"sourceUID,omitempty"`
	Content   string             `json:"content,omitempty"` // hash of the manifest at the adoption
	Objects   criconfig.Adoption `json:"objects"`
}

// NewAdoption returns the record of a pod that is adopted with this spec.
func NewAdoption(pod *corev1.Pod, at time.Time) Adoption {
	return Adoption{Namespace: pod.Namespace, Name: pod.Name, At: at, Objects: criconfig.AdoptionOf(pod)}
}

// Foreign is what the host has of a pod that berth neither created nor adopted.
type Foreign struct {
	UID             types.UID
	Namespace, Name string // empty: the pod has no sandbox
	Kubelet         bool   // the kubelet has created a sandbox of the pod
	OtherBerth      bool   // another berth has
	HasDir          bool   // the pod has a directory below the root directory
	Static          bool   // its source is a file
	Ready           bool   // one of its sandboxes is ready
	// CreatedAt is when its newest sandbox was created; zero: it has none.
	CreatedAt time.Time
}

// Adoptable reports whether a source that wants this UID may have the pod adopted. Another berth keeps
// its pods, and a process in a cgroup alone can be of any program.
func (f Foreign) Adoptable() bool { return !f.OtherBerth && (f.Kubelet || f.HasDir) }

// Precedes reports whether f is the current one of two pods of the kubelet for the same static pod. An
// edited file leaves exited sandboxes of its previous UIDs until the kubelet collects them.
func (f Foreign) Precedes(other Foreign) bool {
	if f.Ready != other.Ready {
		return f.Ready
	}
	if !f.CreatedAt.Equal(other.CreatedAt) {
		return f.CreatedAt.After(other.CreatedAt)
	}
	return f.UID < other.UID
}

// IsStaticPod reports whether f is the kubelet's static pod for a pod with this name from a file. The
// kubelet always appends the name of the node.
func (f Foreign) IsStaticPod(namespace, name, node string) bool {
	return f.Static && f.Kubelet && f.Adoptable() && f.Namespace == namespace &&
		(f.Name == name || f.Name == name+"-"+strings.ToLower(node))
}

// CurrentStaticPod returns the kubelet's current pod for a static pod with this name. It has no UID if
// there is none. free reports whether a foreign pod is not the pod of another file.
func CurrentStaticPod(pods map[types.UID]Foreign, namespace, name, node string,
	free func(types.UID) bool) (current Foreign) {
	for uid, f := range pods {
		if f.IsStaticPod(namespace, name, node) && free(uid) && (current.UID == "" || f.Precedes(current)) {
			current = f
		}
	}
	return current
}

// Handover keeps the State of a running agent. It is safe for concurrent use.
type Handover struct {
	mu      sync.Mutex
	state   State
	save    func([]byte)
	changed func(State)
}

// NewHandover returns a Handover with the state from the store, which may be nil. save stores a newer
// state. changed receives each state, including the first one. After an error the state is empty.
func NewHandover(stored []byte, save func([]byte), changed func(State)) (*Handover, error) {
	h := &Handover{save: save, changed: changed}
	var err error
	if stored != nil {
		if err = json.Unmarshal(stored, &h.state); err != nil {
			h.state, err = State{}, fmt.Errorf("decode adopted pods: %w", err)
		}
	}
	changed(h.State())
	return h, err
}

// State returns a copy of the state.
func (h *Handover) State() State {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.state.clone()
}

func (s State) clone() State {
	return State{Adopted: maps.Clone(s.Adopted), Released: maps.Clone(s.Released)}
}

// Adopt adds adopted pods.
func (h *Handover) Adopt(pods map[types.UID]Adoption) {
	h.update(func(s State) State { return s.WithAdopted(pods) })
}

// Forget removes pods of which nothing is left.
func (h *Handover) Forget(uids ...types.UID) {
	h.update(func(s State) State {
		s = s.clone()
		for _, uid := range uids {
			delete(s.Adopted, uid)
			delete(s.Released, uid)
		}
		return s
	})
}

func (h *Handover) update(f func(State) State) {
	h.mu.Lock()
	defer h.mu.Unlock()
	next := f(h.state)
	if len(next.Adopted) == len(h.state.Adopted) && len(next.Released) == len(h.state.Released) {
		same := func(a, b Adoption) bool { return a.At.Equal(b.At) }
		if maps.EqualFunc(next.Adopted, h.state.Adopted, same) {
			return
		}
	}
	h.state = next
	h.save(next.encode())
	h.changed(next.clone())
}

// WithAdopted returns the state after the adoption of pods.
func (s State) WithAdopted(pods map[types.UID]Adoption) State {
	s = s.clone()
	if s.Adopted == nil {
		s.Adopted = map[types.UID]Adoption{}
	}
	for uid, a := range pods {
		s.Adopted[uid] = a
		delete(s.Released, uid)
	}
	return s
}

// WithReleased returns the state after the pods were handed over to the kubelet. No pod is adopted then.
func (s State) WithReleased(uids ...types.UID) State {
	s = s.clone()
	if s.Released == nil {
		s.Released = map[types.UID]bool{}
	}
	for _, uid := range slices.Concat(uids, slices.Collect(maps.Keys(s.Adopted))) {
		s.Released[uid] = true
	}
	s.Adopted = nil
	return s
}

func (s State) encode() []byte {
	text, err := json.Marshal(s)
	if err != nil {
		panic("ownership: " + err.Error()) // strings, numbers and times can be encoded
	}
	return text
}

// Objects returns what the runtime client needs to know about adopted pods.
func (s State) Objects() map[types.UID]criconfig.Adoption {
	out := make(map[types.UID]criconfig.Adoption, len(s.Adopted))
	for uid, a := range s.Adopted {
		out[uid] = a.Objects
	}
	return out
}
