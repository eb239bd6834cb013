package cri

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/containerd/containerd/api/services/containers/v1"
	sandboxapi "github.com/containerd/containerd/api/services/sandbox/v1"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// containerd loses objects when the caller of RunPodSandbox or StopPodSandbox dies halfway, or when
// containerd itself dies: the shim keeps running, with or without its process, and neither a list
// nor a removal covers it. This file finds these tasks, and leaks_delete.go deletes them. Other
// runtimes have none: their status reports no containerd directories.

// Layout is the set of paths where containerd stores what CRI does not show.
type Layout struct {
	Address         string // containerd's socket, as passed to its shims
	TaskDir         string // bundles of the tasks in CRI's namespace
	StateDir        string // sandbox state that does not survive a reboot
	RootDir         string // sandbox state that survives a reboot
	RuncRoots       []string
	NetNSDir        string // directory of pinned network namespaces
	PrivateNetNSDir bool   // NetNSDir belongs to this containerd alone
}

// LeakedTask is a task that neither CRI nor containerd knows.
type LeakedTask struct {
	ID      string
	Bundle  string // bundle directory; empty: it does not exist
	RuncDir string // state directory of runc; empty: none
	Shims   []int  // process IDs; empty: no shim runs
	// Owned means that the bundle, the runc state or the cgroup of a process proves that berth
	// created the task. Without that proof, nothing runs in it and it has no bundle, or one without a
	// specification.
	Owned bool
}

// LeakSearch configures LeakedTasks.
type LeakSearch struct {
	Known         func(id string) bool     // IDs that need not be looked up in the runtime
	OwnsCgroup    func(path string) bool   // reports whether a cgroup belongs to a pod of berth
	OwnsPod       func(uid types.UID) bool // the same for the pod of a sandbox without a cgroup; nil: it does
	LogDir        string                   // directory of the pod logs
	ScanProcesses bool                     // also find shims without a bundle; reads all of /proc
}

// Layout returns containerd's layout. ok is false for another runtime. The result is cached until
// the runtime restarts.
func (c *Client) Layout(ctx context.Context) (f Layout, ok bool, err error) {
	if f, ok := c.cache.layout(); ok {
		return f, f.Address != "", nil
	}
	info, err := c.StatusInfo(ctx)
	if err != nil {
		return Layout{}, false, err
	}
	f = parseLayout(info["config"])
	c.cache.setLayout(f)
	return f, f.Address != "", nil
}

// parseLayout reads containerd's configuration from its status. Without an address, the runtime is
// not containerd.
func parseLayout(config json.RawMessage) Layout {
	var c struct {
		Endpoint   string `json:"containerdEndpoint"`
		State      string `json:"stateDir"`
		Root       string `json:"rootDir"`
		OwnNetNS   bool   `json:"netnsMountsUnderStateDir"`
		Containerd struct {
			Runtimes map[string]struct {
				Options struct{ Root string } `json:"options"`
			} `json:"runtimes"`
		} `json:"containerd"`
	}
	if json.Unmarshal(config, &c) != nil || c.Endpoint == "" || !filepath.IsAbs(c.State) || !filepath.IsAbs(c.Root) {
		return Layout{}
	}
	f := Layout{
		Address:  strings.TrimPrefix(c.Endpoint, "unix://"),
		TaskDir:  filepath.Join(filepath.Dir(c.State), "io.containerd.runtime.v2.task", criNamespace),
		StateDir: filepath.Join(c.State, "sandboxes"), RootDir: filepath.Join(c.Root, "sandboxes"),
		RuncRoots: []string{"/run/containerd/runc"},
		NetNSDir:  "/var/run/netns", PrivateNetNSDir: c.OwnNetNS,
	}
	if f.PrivateNetNSDir {
		f.NetNSDir = filepath.Join(c.State, "netns")
	}
	for _, r := range c.Containerd.Runtimes {
		if filepath.IsAbs(r.Options.Root) && !slices.Contains(f.RuncRoots, r.Options.Root) {
			f.RuncRoots = append(f.RuncRoots, r.Options.Root)
		}
	}
	return f
}

// LeakedTasks returns the leaked tasks that berth created, and shims that serve nothing. Tasks that
// are being created or deleted may be in the result, so the caller has to list twice. Tasks of
// other owners are never in it, whatever their state.
func (c *Client) LeakedTasks(ctx context.Context, s LeakSearch) ([]LeakedTask, error) {
	f, ok, err := c.Layout(ctx)
	if err != nil || !ok {
		return nil, err
	}
	found, err := listBundles(f.TaskDir)
	if err != nil {
		return nil, fmt.Errorf("list task bundles: %w", err)
	}
	c.addSocketDirs(found)
	if err := addRuncDirs(found, f.RuncRoots); err != nil {
		return nil, fmt.Errorf("list runc state: %w", err)
	}
	var procs processes
	if s.ScanProcesses {
		procs = scanProcesses()
		procs.addShims(found, f.Address)
	}
	var ids []string
	for id := range found {
		if !s.Known(id) {
			ids = append(ids, id)
		}
	}
	if ids, err = c.UnknownIDs(ctx, ids); err != nil || len(ids) == 0 {
		return nil, err
	}
	if !s.ScanProcesses { // skipped above because most searches find nothing
		procs = scanProcesses()
		procs.addShims(found, f.Address)
	}
	var out []LeakedTask
	for _, id := range ids {
		if t, ok := classifyTask(*found[id], f.TaskDir, procs, s); ok {
			out = append(out, t)
		}
	}
	return out, nil
}

// addSocketDirs records the socket directory of the shims from one bundle: all bundles use the
// same.
func (c *Client) addSocketDirs(found map[string]*LeakedTask) {
	for _, t := range found {
		if address := shimAddress(t.Bundle); address != "" {
			c.sockets.add(address)
			return
		}
	}
}

// listBundles returns the task bundles by ID. Directories whose name begins with a dot are being
// removed.
func listBundles(dir string) (map[string]*LeakedTask, error) {
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	out := map[string]*LeakedTask{}
	for _, e := range entries {
		if isContainerID(e.Name()) && e.IsDir() {
			out[e.Name()] = &LeakedTask{ID: e.Name(), Bundle: filepath.Join(dir, e.Name())}
		}
	}
	return out, nil
}

// addRuncDirs adds the state directories of runc, one per container. Other containerds may store
// theirs in the same place.
func addRuncDirs(tasks map[string]*LeakedTask, roots []string) error {
	for _, root := range roots {
		entries, err := os.ReadDir(filepath.Join(root, criNamespace))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		for _, e := range entries {
			if id := e.Name(); isContainerID(id) && e.IsDir() {
				if tasks[id] == nil {
					tasks[id] = &LeakedTask{ID: id}
				}
				tasks[id].RuncDir = filepath.Join(root, criNamespace, id)
			}
		}
	}
	return nil
}

// isContainerID reports whether a name has the form of an ID that CRI generates.
func isContainerID(name string) bool {
	return len(name) == 64 && strings.Trim(name, "0123456789abcdef") == ""
}

// UnknownIDs returns the IDs, sorted, that neither CRI nor containerd lists, regardless of the
// owner. A containerd record with berth's label does not count as known, except a record in the
// sandbox store of 2.x: CRI has lost the object, or is creating the sandbox. A container exists
// before its task, and in 2.x a sandbox exists before its network. An unknown ID therefore belongs
// to an object that does not exist, or to a sandbox whose network containerd 1.6 is creating.
func (c *Client) UnknownIDs(ctx context.Context, ids []string) ([]string, error) {
	if len(ids) == 0 {
		return nil, nil
	}
	sandboxes, err := c.allSandboxes(ctx, &runtimeapi.PodSandboxFilter{})
	if err != nil {
		return nil, err
	}
	all, err := c.allContainers(ctx, &runtimeapi.ContainerFilter{})
	if err != nil {
		return nil, err
	}
	known := make(map[string]bool, len(sandboxes)+len(all))
	for _, s := range sandboxes {
		known[s.Id] = true
	}
	for _, k := range all {
		known[k.Id] = true
	}
	var out []string
	for _, id := range ids {
		if known[id] {
			continue
		}
		listed, err := c.hasRecord(ctx, id)
		if err != nil {
			return nil, err
		}
		if !listed {
			out = append(out, id)
		}
	}
	slices.Sort(out)
	return slices.Compact(out), nil
}

// hasRecord reports whether containerd itself has a container or sandbox with that ID that CRI has
// not lost.
func (c *Client) hasRecord(ctx context.Context, id string) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, c.deadlines.Query)
	defer cancel()
	ctx = metadata.AppendToOutgoingContext(ctx, "containerd-namespace", criNamespace)
	got, err := c.containers.Get(ctx, &containers.GetContainerRequest{ID: id})
	switch {
	case err == nil && !c.isOwnRecord(got.GetContainer()):
		return true, nil
	case err != nil && status.Code(err) != codes.NotFound:
		return false, mapError(ctx, verbContainerStatus, id, err)
	}
	_, err = c.sandboxStore.Get(ctx, &sandboxapi.StoreGetRequest{SandboxID: id})
	switch status.Code(err) {
	case codes.OK:
		return true, nil
	case codes.NotFound, codes.Unimplemented: // 1.6 has no such store
		return false, nil
	default:
		return false, mapError(ctx, verbSandboxStatus, id, err)
	}
}

// isOwnRecord reports whether CRI created a containerd record for berth.
func (c *Client) isOwnRecord(k *containers.Container) bool {
	return k.GetLabels()["io.cri-containerd.kind"] != "" && c.owns(k.GetLabels())
}

// classifyTask reports whether berth may delete a task, judging by the available evidence. The
// bundle is sufficient: the cgroup is one of a pod's, and the log directory of a sandbox is below
// that of the pod logs. Without a bundle, the runc state has the same information, and also names
// the bundle and thereby the containerd. Without runc state, the cgroups of the processes in the
// task decide. A task without processes serves nothing: containerd starts no shim for an ID that it
// has no record of, or runc was killed before it wrote its state.
func classifyTask(t LeakedTask, tasks string, procs processes, s LeakSearch) (LeakedTask, bool) {
	if slices.ContainsFunc(t.Shims, func(pid int) bool { return procs.busy[pid] }) {
		return t, false // containerd is working on it
	}
	spec, err := readSpec(t.Bundle)
	if err == nil {
		t.Owned = ownedBySpec(spec, s)
		return t, t.Owned
	}
	if state, err := readRuncState(t.RuncDir); err == nil && t.Bundle == "" {
		t.Owned = state.bundle() == filepath.Join(tasks, t.ID) && ownedBySpec(state.spec(), s)
		return t, t.Owned
	}
	inside := procs.descendants(t.Shims)
	for _, pid := range inside {
		if !slices.ContainsFunc(cgroupsOf(pid), s.OwnsCgroup) {
			return t, false
		}
	}
	t.Owned = len(inside) > 0
	now := time.Now()
	if t.Bundle != "" {
		return t, t.Owned || isIncompleteBundle(t, now)
	}
	return t, t.Owned || len(t.Shims) > 0 || isAbortedCreate(t, now)
}

// isIncompleteBundle reports whether containerd did not complete the creation or the removal of a bundle: the
// directory has been without a specification for a while, and neither a shim nor runc nor another process
// knows the task. Like the directory of an aborted creation by runc, it has no owner.
func isIncompleteBundle(t LeakedTask, now time.Time) bool {
	at, err := os.Stat(t.Bundle)
	if err != nil || now.Sub(at.ModTime()) < abortedCreateAge || len(t.Shims) > 0 || t.RuncDir != "" {
		return false
	}
	_, err = os.Lstat(filepath.Join(t.Bundle, "config.json"))
	return errors.Is(err, fs.ErrNotExist) && !isMentionedByProcess(t.ID)
}

// abortedCreateAge is far longer than runc needs to write the state of a new container.
const abortedCreateAge = time.Minute

// isAbortedCreate reports whether runc was killed before it wrote its state: its directory for the
// container has been without a state file for a while, and no process mentions the container's ID,
// as runc and the shims of every containerd do while they work on it. Such a directory has no
// owner, regardless of the containerd.
func isAbortedCreate(t LeakedTask, now time.Time) bool {
	if t.RuncDir == "" {
		return false
	}
	at, err := os.Stat(t.RuncDir)
	if err != nil || now.Sub(at.ModTime()) < abortedCreateAge {
		return false
	}
	_, err = os.Lstat(filepath.Join(t.RuncDir, "state.json"))
	return errors.Is(err, fs.ErrNotExist) && !isMentionedByProcess(t.ID)
}

func readSpec(bundle string) (*specs.Spec, error) {
	if bundle == "" {
		return nil, fs.ErrNotExist
	}
	text, err := os.ReadFile(filepath.Join(bundle, "config.json"))
	if err != nil {
		return nil, err
	}
	spec := new(specs.Spec)
	return spec, json.Unmarshal(text, spec)
}

// runcState is the part of runc's state.json that is used here.
type runcState struct {
	Init   int `json:"init_process_pid"`
	Config struct {
		Labels  []string // annotations and bundle, as name=value
		Cgroups struct{ Path, Name, Parent string }
	} `json:"config"`
}

func readRuncState(dir string) (state runcState, err error) {
	if dir == "" {
		return state, fs.ErrNotExist
	}
	text, err := os.ReadFile(filepath.Join(dir, "state.json"))
	if err != nil {
		return state, err
	}
	return state, json.Unmarshal(text, &state)
}

func (s runcState) label(name string) (string, bool) {
	for _, l := range s.Config.Labels {
		if value, ok := strings.CutPrefix(l, name+"="); ok {
			return value, true
		}
	}
	return "", false
}

func (s runcState) bundle() string {
	b, _ := s.label("bundle")
	return b
}

// spec returns the part of the container's runtime spec that the state repeats. With systemd, the
// cgroup is given by its slice and name.
func (s runcState) spec() *specs.Spec {
	spec := &specs.Spec{Linux: &specs.Linux{CgroupsPath: s.Config.Cgroups.Path}}
	if spec.Linux.CgroupsPath == "" && s.Config.Cgroups.Parent != "" {
		spec.Linux.CgroupsPath = s.Config.Cgroups.Parent + ":" + s.Config.Cgroups.Name
	}
	for _, name := range []string{sandboxLogDirAnnotation, sandboxUIDAnnotation} {
		if value, ok := s.label(name); ok {
			if spec.Annotations == nil {
				spec.Annotations = map[string]string{}
			}
			spec.Annotations[name] = value
		}
	}
	return spec
}

// sandboxLogDirAnnotation is containerd's annotation with the log directory of a sandbox.
const sandboxLogDirAnnotation = "io.kubernetes.cri.sandbox-log-directory"

// sandboxUIDAnnotation is containerd's annotation with the UID of the pod.
const sandboxUIDAnnotation = "io.kubernetes.cri.sandbox-uid"

func ownedBySpec(spec *specs.Spec, s LeakSearch) bool {
	logs, hasLogs := spec.Annotations[sandboxLogDirAnnotation]
	if hasLogs && !isBelow(logs, s.LogDir) {
		return false
	}
	cgroup := ""
	if spec.Linux != nil {
		cgroup = spec.Linux.CgroupsPath
	}
	if cgroup == "" { // containerd is configured not to use cgroups
		uid := types.UID(spec.Annotations[sandboxUIDAnnotation])
		return hasLogs && (s.OwnsPod == nil || s.OwnsPod(uid))
	}
	return s.OwnsCgroup(cgroup)
}

// isBelow reports whether path is inside the directory dir.
func isBelow(path, dir string) bool {
	rel, err := filepath.Rel(dir, path)
	return dir != "" && err == nil && rel != "." && filepath.IsLocal(rel)
}
