package ownership

import (
	"errors"
	"fmt"
	"sync"

	"k8s.io/apimachinery/pkg/types"
)

// MaxDeleted is how many deleted pods keep their owner. Older ones are forgotten.
const MaxDeleted = 1024

// ErrForeign reports that something of a pod on the host was not created by berth.
var ErrForeign = errors.New("the host has a foreign pod with this UID")

// Dirs are the directories of pods.
type Dirs interface {
	// PodDir reports whether the pod has a directory, and whether that has the mark.
	PodDir(uid types.UID) (exists, marked bool, err error)
	// ClaimDir creates the pod's directory with the mark. The directory never exists without it.
	ClaimDir(uid types.UID) error
	// MarkDir marks the pod's directory, if it has one.
	MarkDir(uid types.UID) error
}

// Registry knows the owner of each pod on the host. It is safe for concurrent use.
type Registry struct {
	dirs        Dirs
	cgroupInUse func(types.UID) bool

	mu      sync.Mutex
	proven  map[types.UID]bool
	deleted map[types.UID]bool
	order   []types.UID // of deleted, oldest first
}

// New returns a Registry that knows only what is on the host. cgroupInUse reports whether the pod's
// cgroup contains processes.
func New(dirs Dirs, cgroupInUse func(types.UID) bool) *Registry {
	return &Registry{
		dirs: dirs, cgroupInUse: cgroupInUse, proven: map[types.UID]bool{}, deleted: map[types.UID]bool{},
	}
}

// Owns reports whether the pod belongs to this agent. It is false if that cannot be read.
func (r *Registry) Owns(uid types.UID) bool {
	e, err := r.evidence(uid)
	if err != nil || !e.Owned() {
		return false
	}
	if e.Marked && !e.Proven {
		r.prove(uid) // the mark is removed with the directory, which may happen before the cgroup is removed
	}
	return true
}

// Unmarked reports whether the pod has a directory without the mark and no other evidence of this agent.
// The result for a pod that belongs to the agent costs no system call.
func (r *Registry) Unmarked(uid types.UID) bool {
	r.mu.Lock()
	proven := r.proven[uid]
	r.mu.Unlock()
	if proven {
		return false
	}
	exists, marked, err := r.dirs.PodDir(uid)
	if err != nil || !exists {
		return false
	}
	if marked {
		r.prove(uid)
	}
	return !marked
}

// OwnsUnlabeled reports whether the objects in the runtime that an older release created for a pod belong to
// this instance of berth: only it has a directory of the pod.
func (r *Registry) OwnsUnlabeled(uid types.UID) bool {
	exists, _, err := r.dirs.PodDir(uid)
	return err == nil && exists || r.Owns(uid)
}

// OwnsLeak reports whether an object of the pod that the runtime does not know belongs to this agent.
func (r *Registry) OwnsLeak(uid types.UID) bool {
	e, err := r.evidence(uid)
	return err == nil && e.LeakOwned()
}

// Claim creates the pod's directory with the mark, before anything else of the pod is created. The
// error is ErrForeign if the host has something of a foreign pod with this UID, which is not changed.
func (r *Registry) Claim(uid types.UID) error {
	e, err := r.evidence(uid)
	if err != nil {
		return err
	}
	if why := e.Conflict(); why != "" {
		return fmt.Errorf("%w: %s", ErrForeign, why)
	}
	if e.HasDir {
		err = r.dirs.MarkDir(uid)
	} else {
		err = r.dirs.ClaimDir(uid)
	}
	if err == nil {
		r.prove(uid)
	}
	return err
}

// Prove records that the store or the runtime proves that berth created these pods, and marks their
// directories. A mark that cannot be written is no error of the pod: the proof is repeated by the
// next agent.
func (r *Registry) Prove(uids ...types.UID) error {
	var errs []error
	for _, uid := range uids {
		r.prove(uid)
		errs = append(errs, r.dirs.MarkDir(uid))
	}
	return errors.Join(errs...)
}

func (r *Registry) prove(uid types.UID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.proven[uid] = true
}

// Deleted records that berth has deleted these pods. What the runtime still creates for them is
// berth's own. A pod that did not belong to berth is ignored.
func (r *Registry) Deleted(uids ...types.UID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, uid := range uids {
		if r.proven[uid] {
			delete(r.proven, uid)
			r.addDeleted(uid)
		}
	}
}

// RestoreDeleted restores the pods that berth had deleted before its start, oldest first.
func (r *Registry) RestoreDeleted(uids ...types.UID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, uid := range uids {
		r.addDeleted(uid)
	}
}

// addDeleted adds a deleted pod and forgets the oldest ones. The caller holds the lock.
func (r *Registry) addDeleted(uid types.UID) {
	if r.deleted[uid] {
		return
	}
	r.deleted[uid] = true
	r.order = append(r.order, uid)
	for len(r.order) > MaxDeleted {
		delete(r.deleted, r.order[0])
		r.order = r.order[1:]
	}
}

func (r *Registry) evidence(uid types.UID) (e Evidence, err error) {
	e.HasDir, e.Marked, err = r.dirs.PodDir(uid)
	r.mu.Lock()
	e.Proven, e.Deleted = r.proven[uid], r.deleted[uid]
	r.mu.Unlock()
	if err == nil && !e.HasDir && !e.Proven { // otherwise it decides nothing
		e.CgroupInUse = r.cgroupInUse(uid)
	}
	return e, err
}
