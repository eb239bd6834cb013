package check

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/types"

	"berth/cri"
	"berth/volumes"
)

// ForeignPod is a pod on this host that berth did not create.
type ForeignPod struct {
	UID       types.UID
	Name      string      // namespace/name; empty: unknown
	HasDir    bool        // it has a directory below the root directory
	Sandboxes int         // number of its sandboxes
	Creator   cri.Creator // of its sandboxes; empty: it has none
	Programs  []string    // names of the processes in its cgroup
}

// Owner returns the probable owner of the pod. Only the kubelet, and programs that replace it, create
// directories of pods.
func (p ForeignPod) Owner() cri.Creator {
	switch {
	case p.Creator != "":
		return p.Creator
	case p.HasDir:
		return cri.CreatorKubelet
	default:
		return cri.CreatorUnknown
	}
}

// Message describes the pod and its probable owner. kubeletRunning adds that a kubelet runs.
func (p ForeignPod) Message(kubeletRunning bool) string {
	owner := string(p.Owner())
	if p.Owner() == cri.CreatorKubelet && kubeletRunning {
		owner += ", which is running"
	}
	var parts []string
	if p.HasDir {
		parts = append(parts, "pod directory")
	}
	if p.Sandboxes > 0 {
		parts = append(parts, fmt.Sprintf("%d sandboxes", p.Sandboxes))
	}
	if len(p.Programs) > 0 {
		names := slices.Compact(slices.Sorted(slices.Values(p.Programs)))
		parts = append(parts, fmt.Sprintf("%d processes (%s)", len(p.Programs), strings.Join(names, ", ")))
	}
	return fmt.Sprintf("%s: probable owner: %s; %s", cmp.Or(p.Name, "unknown name"), owner, strings.Join(parts, ", "))
}

const foreignRemedy = "none needed: berth does not change this pod, but its resources are not counted; to remove the " +
	"pod, use its owner"

// checkForeignPods adds an item for each pod of another owner.
func (c Node) checkForeignPods(ctx context.Context, add AddFunc) {
	pods, err := c.foreignPods(ctx)
	if err != nil {
		add("foreign pods", false, err, "", "start the runtime: pods of other owners cannot be listed without it")
		return
	}
	running := len(pods) > 0 && kubeletRuns("/proc")
	for _, p := range pods {
		add("foreign pod "+string(p.UID), false, errors.New(p.Message(running)), "", foreignRemedy)
	}
}

// foreignPods lists the foreign pods that have a directory, a sandbox or a cgroup with processes, by
// UID. A sandbox without the UID of a pod has its own ID as UID.
func (c Node) foreignPods(ctx context.Context) ([]ForeignPod, error) {
	owned, dirs, err := c.owners(ctx)
	if err != nil {
		return nil, err
	}
	found := map[types.UID]ForeignPod{}
	for _, uid := range dirs {
		if !owned(uid) {
			found[uid] = ForeignPod{UID: uid, HasDir: true}
		}
	}
	sandboxes, err := c.Runtime.ForeignSandboxes(ctx)
	if err != nil {
		return nil, err
	}
	for _, s := range sandboxes {
		uid := cmp.Or(s.UID, types.UID(s.ID))
		p := found[uid]
		p.UID, p.Name, p.Creator, p.Sandboxes = uid, s.Namespace+"/"+s.Name, s.Creator, p.Sandboxes+1
		found[uid] = p
	}
	own, err := c.Cgroups.Pods(ctx)
	foreign, err2 := c.Cgroups.ForeignPods(ctx)
	if err := errors.Join(err, err2); err != nil {
		return nil, err
	}
	for _, uid := range append(own, foreign...) {
		p, known := found[uid]
		pids := c.Cgroups.Processes(uid)
		if owned(uid) || !known && len(pids) == 0 {
			continue
		}
		p.UID = uid
		for _, pid := range pids {
			p.Programs = append(p.Programs, programName("/proc", pid))
		}
		found[uid] = p
	}
	out := slices.Collect(maps.Values(found))
	slices.SortFunc(out, func(a, b ForeignPod) int { return cmp.Compare(a.UID, b.UID) })
	return out, nil
}

// owners returns which pods belong to berth, and the pods with directories without its mark. Without
// an agent, these are the pods with a mark and those with berth's labels in the runtime.
func (c Node) owners(ctx context.Context) (owned func(types.UID) bool, dirs []types.UID, err error) {
	marked, dirs, err := volumes.ListPods(ctx, c.Config.RootDir)
	if err != nil || c.Owns != nil {
		return c.Owns, dirs, err
	}
	listed, err := c.Runtime.Pods(ctx)
	own := make(map[types.UID]bool, len(marked)+len(listed))
	for _, uid := range marked {
		own[uid] = true
	}
	for uid := range listed {
		own[uid] = true
	}
	return func(uid types.UID) bool { return own[uid] }, dirs, err
}

func programName(proc, pid string) string {
	text, err := os.ReadFile(filepath.Join(proc, pid, "comm"))
	if err != nil {
		return "exited"
	}
	return strings.TrimSpace(string(text))
}

// kubeletRuns reports whether a process with the name of the kubelet runs.
func kubeletRuns(proc string) bool {
	comms, _ := filepath.Glob(filepath.Join(proc, "[0-9]*", "comm"))
	return slices.ContainsFunc(comms, func(file string) bool {
		text, err := os.ReadFile(file)
		return err == nil && strings.TrimSpace(string(text)) == "kubelet"
	})
}
