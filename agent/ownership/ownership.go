package ownership

import (
	"crypto/sha256"
	"encoding/hex"
	"path/filepath"
)

// Evidence is everything that is known about the owner of a pod.
type Evidence struct {
	HasDir  bool // the pod has a directory below the root directory
	Marked  bool // that has the mark
	Proven  bool // the store, the runtime or this process proves that berth created the pod
	Deleted bool // berth has deleted the pod, and it had no directory after that
	// CgroupInUse means that the pod's cgroup contains processes.
	CgroupInUse bool
}

// Owned reports whether the pod belongs to the agent. What is left of a deleted pod does, unless
// another program has created a directory for the same UID since. Processes in the cgroup of a
// deleted pod can be those of another program, so they do not.
func (e Evidence) Owned() bool {
	return e.Marked || e.Proven || e.Deleted && !e.HasDir && !e.CgroupInUse
}

// LeakOwned reports whether a task of the pod that the runtime does not know belongs to the agent. A
// task of another program is known to the runtime, so that one of a deleted pod belongs to the agent.
func (e Evidence) LeakOwned() bool {
	return e.Owned() || e.Deleted && !e.HasDir
}

// Conflict returns what prevents the agent from creating the pod. Empty: nothing.
func (e Evidence) Conflict() string {
	switch {
	case e.Owned():
		return ""
	case e.HasDir:
		return "the pod directory was not created by berth"
	case e.CgroupInUse:
		return "the pod cgroup contains processes that were not started by berth"
	}
	return ""
}

// Instance returns the value of the label that distinguishes the objects of several berths in one
// runtime. It depends only on the root directory, so that a lost store does not change it: agents
// with the same root directory are the same instance.
func Instance(rootDir string) string {
	sum := sha256.Sum256([]byte(filepath.Clean(rootDir)))
	return hex.EncodeToString(sum[:8])
}
