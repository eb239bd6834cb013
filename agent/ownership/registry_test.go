package ownership

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	"k8s.io/apimachinery/pkg/types"
)

func TestEvidence(t *testing.T) {
	t.Parallel()
	const dirConflict = "the pod directory was not created by berth"
	const cgroupConflict = "the pod cgroup contains processes that were not started by berth"
	for name, c := range map[string]struct {
		e        Evidence
		owned    bool
		conflict string
	}{
		"nothing exists":                       {Evidence{}, false, ""},
		"directory with mark":                  {Evidence{HasDir: true, Marked: true}, true, ""},
		"directory without mark":               {Evidence{HasDir: true}, false, dirConflict},
		"directory of the release before":      {Evidence{HasDir: true, Proven: true}, true, ""},
		"in the runtime only":                  {Evidence{Proven: true}, true, ""},
		"deleted":                              {Evidence{Deleted: true}, true, ""},
		"deleted, then created by the kubelet": {Evidence{Deleted: true, HasDir: true}, false, dirConflict},
		"deleted, then created again":          {Evidence{Deleted: true, HasDir: true, Marked: true}, true, ""},
		"cgroup with processes":                {Evidence{CgroupInUse: true}, false, cgroupConflict},
		"own cgroup with processes":            {Evidence{HasDir: true, Marked: true, CgroupInUse: true}, true, ""},
		"cgroup of a deleted pod":              {Evidence{Deleted: true, CgroupInUse: true}, false, cgroupConflict},
		"kubelet pod with cgroup and directory": {Evidence{HasDir: true, CgroupInUse: true}, false,
			dirConflict},
	} {
		if c.e.Owned() != c.owned || c.e.Conflict() != c.conflict {
			t.Errorf("%s: got %v %q, want %v %q", name, c.e.Owned(), c.e.Conflict(), c.owned, c.conflict)
		}
		leak := c.owned || c.e.Deleted && !c.e.HasDir
		if c.e.LeakOwned() != leak {
			t.Errorf("%s: got %v for a leaked task, want %v", name, c.e.LeakOwned(), leak)
		}
	}
}

// world is a host with pods of several owners. The owner of each object is known to the world only.
type world struct {
	dirs, marked, cgroups map[types.UID]bool
	owner                 map[types.UID]string // berth, kubelet; empty: nothing exists
	writeErr              bool
	violations            []string
}

func (w *world) PodDir(uid types.UID) (exists, marked bool, err error) {
	return w.dirs[uid], w.marked[uid], nil
}

func (w *world) ClaimDir(uid types.UID) error {
	switch {
	case w.writeErr:
		return errors.New("read-only file system")
	case w.dirs[uid] && !w.marked[uid]:
		return errors.New("exists")
	case w.owner[uid] == "kubelet":
		w.violate("%s of the kubelet is claimed", uid)
	}
	w.dirs[uid], w.marked[uid], w.owner[uid] = true, true, "berth"
	return nil
}

func (w *world) MarkDir(uid types.UID) error {
	if w.writeErr {
		return errors.New("read-only file system")
	}
	if w.owner[uid] == "kubelet" && w.dirs[uid] {
		w.violate("directory %s of the kubelet is marked", uid)
	}
	w.marked[uid] = w.dirs[uid]
	return nil
}

func (w *world) violate(format string, args ...any) {
	w.violations = append(w.violations, fmt.Sprintf(format, args...))
}

// TestSimOwnership runs agents, with and without their stores, on a host where another program creates and
// deletes pods with the same UIDs. O1, O2: nothing of the other program is ever owned. O3, O4: what berth
// created is owned until it is gone.
func TestSimOwnership(t *testing.T) {
	t.Parallel()
	for seed := range uint64(300) {
		rng := rand.New(rand.NewPCG(seed, 15))
		w := &world{
			dirs: map[types.UID]bool{}, marked: map[types.UID]bool{}, cgroups: map[types.UID]bool{},
			owner: map[types.UID]string{},
		}
		inUse := func(uid types.UID) bool { return w.cgroups[uid] }
		r := New(w, inUse)
		inRuntime := map[types.UID]bool{} // sandboxes of berth
		for step := range 200 {
			uid := types.UID(fmt.Sprint("uid", rng.IntN(4)))
			w.writeErr = rng.IntN(10) == 0
			switch rng.IntN(8) {
			case 0: // the kubelet creates a pod: directory first, or cgroup first
				if w.owner[uid] == "" {
					w.owner[uid], w.dirs[uid], w.cgroups[uid] = "kubelet", rng.IntN(4) > 0, true
				}
			case 1: // and deletes one
				if w.owner[uid] == "kubelet" {
					delete(w.owner, uid)
					delete(w.dirs, uid)
					delete(w.cgroups, uid)
				}
			case 2, 3: // berth starts a pod
				if err := r.Claim(uid); err != nil {
					break
				}
				w.cgroups[uid] = true
				inRuntime[uid] = rng.IntN(2) == 0
			case 4, 5: // and deletes one
				if !r.Owns(uid) || w.owner[uid] == "" {
					break
				}
				if w.owner[uid] != "berth" {
					w.violate("step %d: %s of %q is deleted", step, uid, w.owner[uid])
				}
				for _, m := range []map[types.UID]bool{w.dirs, w.marked, w.cgroups, inRuntime} {
					delete(m, uid)
				}
				delete(w.owner, uid)
				r.Deleted(uid)
			case 6: // berth starts again with a lost store
				r = New(w, inUse)
				w.writeErr = false
				for uid, is := range inRuntime {
					if is {
						_ = r.Prove(uid) // the world returns no error without writeErr
					}
				}
			}
			for uid, owner := range w.owner {
				if owner == "kubelet" && r.Owns(uid) || owner == "berth" && !r.Owns(uid) {
					w.violate("step %d: %s of %q: owned %v", step, uid, owner, r.Owns(uid))
				}
			}
			if len(w.violations) > 0 {
				t.Fatalf("seed %d: %v", seed, w.violations)
			}
		}
	}
}

func TestProveMarksDirectoriesOfTheReleaseBefore(t *testing.T) {
	t.Parallel()
	w := &world{
		dirs: map[types.UID]bool{"old": true}, marked: map[types.UID]bool{},
		owner: map[types.UID]string{"old": "berth"},
	}
	r := New(w, func(types.UID) bool { return true })
	if r.Owns("old") {
		t.Error("a directory without mark and proof is owned")
	}
	if err := r.Prove("old", "gone"); err != nil || !w.marked["old"] || w.marked["gone"] {
		t.Errorf("got marks %v, error %v", w.marked, err)
	}
	if !New(w, func(types.UID) bool { return true }).Owns("old") {
		t.Error("the mark alone is not sufficient")
	}
	if err := New(w, func(types.UID) bool { return true }).Claim("other"); !errors.Is(err, ErrForeign) {
		t.Errorf("got %v, want ErrForeign for a cgroup with processes", err)
	}
}

func TestDeletedPodsAreForgottenOldestFirst(t *testing.T) {
	t.Parallel()
	w := &world{dirs: map[types.UID]bool{}, marked: map[types.UID]bool{}, owner: map[types.UID]string{}}
	r := New(w, func(types.UID) bool { return false })
	for i := range MaxDeleted + 1 {
		r.RestoreDeleted(types.UID(fmt.Sprint(i)), types.UID(fmt.Sprint(i)))
	}
	if r.Owns("0") || !r.Owns("1") || !r.Owns(types.UID(fmt.Sprint(MaxDeleted))) {
		t.Error("not the oldest deleted pod was forgotten")
	}
	if r.Deleted("foreign"); r.Owns("foreign") {
		t.Error("a pod that did not belong to berth is owned after its deletion")
	}
	w.dirs["1"] = true
	if r.Owns("1") {
		t.Error("a directory that was created after the deletion is owned")
	}
}
