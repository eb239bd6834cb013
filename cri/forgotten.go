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
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/cri/criconfig"
)

// containerd forgets what it made when the caller of RunPodSandbox or
// StopPodSandbox dies half-way, or it dies itself: the shim lives on, with or
// without its process, and neither a list nor a removal knows of it. This file
// finds such tasks; forgotten_end.go ends them. Other runtimes have none: their
// status names no directory of containerd's.

// Layout is where this containerd keeps what CRI does not show.
type Layout struct {
	Address         string // of its socket, as its shims have it
	TaskDir         string // bundles of the tasks in CRI's namespace
	StateDir        string // CRI's own directory for what a reboot may take
	RootDir         string // CRI's own directory for what stays
	RuncRoots       []string
	NetNSDir        string // directory of pinned network namespaces
	PrivateNetNSDir bool   // NetNS is this containerd's alone
}

// LeakedTask is a task that nothing in CRI or containerd answers for.
type LeakedTask struct {
	ID      string
	Bundle  string // its directory; empty: gone
	RuncDir string // directory of the low-level runtime's own books; empty: none
	Shims   []int  // processes; empty: none lives
	// Owned says that the bundle, the low-level runtime's books or the cgroup of a
	// process show that berth made it. Without the mark nothing runs in it and no bundle is left of it.
	Owned bool
}

// LeakSearch says what Forgotten looks at.
type LeakSearch struct {
	Known         func(id string) bool   // need not be asked of the runtime
	OwnsCgroup    func(path string) bool // whether a cgroup is one of the pods'
	LogDir        string                 // directory of the pods' logs
	ScanProcesses bool                   // also shims whose bundle is gone; reads /proc
}

// Layout asks containerd where it keeps things; not ok if the runtime is another
// one. It asks once in the runtime's life.
func (c *Client) Layout(ctx context.Context) (f Layout, ok bool, err error) {
	if f, ok := c.facts.layout(); ok {
		return f, f.Address != "", nil
	}
	info, err := c.StatusInfo(ctx)
	if err != nil {
		return Layout{}, false, err
	}
	f = factsOf(info["config"])
	c.facts.setLayout(f)
	return f, f.Address != "", nil
}

// factsOf reads containerd's own configuration as its status shows it; without
// an address it is not containerd's.
func factsOf(config json.RawMessage) Layout {
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

// LeakedTasks lists the tasks that berth made and nobody answers for, and shims
// that serve nothing. What is being made or taken away just now is among it:
// the caller looks twice. What another made is not, whatever state it is in.
func (c *Client) LeakedTasks(ctx context.Context, s LeakSearch) ([]LeakedTask, error) {
	f, ok, err := c.Layout(ctx)
	if err != nil || !ok {
		return nil, err
	}
	found, err := bundles(f.TaskDir)
	if err != nil {
		return nil, fmt.Errorf("list the runtime's bundles: %w", err)
	}
	c.learnSockets(found)
	if err := addStates(found, f.RuncRoots); err != nil {
		return nil, fmt.Errorf("list what runc keeps: %w", err)
	}
	var procs processes
	if s.ScanProcesses {
		procs = lookAtProcesses()
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
	if !s.ScanProcesses { // now there is a reason
		procs = lookAtProcesses()
		procs.addShims(found, f.Address)
	}
	var out []LeakedTask
	for _, id := range ids {
		if t, ok := judge(*found[id], f.TaskDir, procs, s); ok {
			out = append(out, t)
		}
	}
	return out, nil
}

// learnSockets notes where shims listen, from one bundle: all are alike.
func (c *Client) learnSockets(found map[string]*LeakedTask) {
	for _, t := range found {
		if address := addressOf(t.Bundle); address != "" {
			c.sockets.learn(address)
			return
		}
	}
}

// bundles lists the directories of tasks by ID. Those whose name begins with a
// dot are being removed.
func bundles(dir string) (map[string]*LeakedTask, error) {
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	out := map[string]*LeakedTask{}
	for _, e := range entries {
		if isID(e.Name()) && e.IsDir() {
			out[e.Name()] = &LeakedTask{ID: e.Name(), Bundle: filepath.Join(dir, e.Name())}
		}
	}
	return out, nil
}

// addStates notes what runc keeps, a directory per container; other containerds
// may have theirs in the same place.
func addStates(tasks map[string]*LeakedTask, roots []string) error {
	for _, root := range roots {
		entries, err := os.ReadDir(filepath.Join(root, criNamespace))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		for _, e := range entries {
			if id := e.Name(); isID(id) && e.IsDir() {
				if tasks[id] == nil {
					tasks[id] = &LeakedTask{ID: id}
				}
				tasks[id].RuncDir = filepath.Join(root, criNamespace, id)
			}
		}
	}
	return nil
}

// isID reports whether a name is an ID as CRI makes them.
func isID(name string) bool {
	return len(name) == 64 && strings.Trim(name, "0123456789abcdef") == ""
}

// UnknownIDs returns those of the IDs, sorted, that neither CRI nor containerd
// lists, whoever made them. A record of containerd's that berth's own label is on
// does not count, unless it is that of a sandbox in 2.x's store: CRI has lost it,
// or makes the sandbox just now. A container is there before its task, and a 2.x
// sandbox before its network, so that an ID that is unknown is gone, or is that
// of a sandbox whose network containerd 1.6 makes just now.
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
		listed, err := c.booked(ctx, id)
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

// booked reports whether containerd itself has a container or sandbox of that ID
// that CRI has not lost.
func (c *Client) booked(ctx context.Context, id string) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, c.deadlines.Query)
	defer cancel()
	ctx = metadata.AppendToOutgoingContext(ctx, "containerd-namespace", criNamespace)
	got, err := c.containers.Get(ctx, &containers.GetContainerRequest{ID: id})
	switch {
	case err == nil && !forBerth(got.GetContainer()):
		return true, nil
	case err != nil && status.Code(err) != codes.NotFound:
		return false, mapError(ctx, verbContainerStatus, id, err)
	}
	_, err = c.stored.Get(ctx, &sandboxapi.StoreGetRequest{SandboxID: id})
	switch status.Code(err) {
	case codes.OK:
		return true, nil
	case codes.NotFound, codes.Unimplemented: // 1.6 has no such store
		return false, nil
	default:
		return false, mapError(ctx, verbSandboxStatus, id, err)
	}
}

// forBerth reports whether a record of containerd's is one that CRI made for berth.
func forBerth(k *containers.Container) bool {
	return k.GetLabels()["io.cri-containerd.kind"] != "" && k.GetLabels()[criconfig.OwnerLabel] == criconfig.OwnerVersion
}

// judge decides on the evidence whether a task is berth's to end. Its bundle
// tells: the cgroup lies among those of the pods, and the log directory of a
// sandbox among those of their logs. Without a bundle runc's books tell the same,
// and which containerd's bundle it was; without these what runs in it, by its
// cgroup. Without any nothing runs in it: the shim serves nobody, and containerd
// starts none for an ID that it has not booked; or runc never began its books.
func judge(t LeakedTask, tasks string, procs processes, s LeakSearch) (LeakedTask, bool) {
	if slices.ContainsFunc(t.Shims, func(pid int) bool { return procs.busy[pid] }) {
		return t, false // containerd is at it
	}
	spec, err := specOf(t.Bundle)
	if err == nil {
		t.Owned = oursBySpec(spec, s)
		return t, t.Owned
	}
	if state, err := booksOf(t.RuncDir); err == nil && t.Bundle == "" {
		t.Owned = state.bundle() == filepath.Join(tasks, t.ID) && oursBySpec(state.spec(), s)
		return t, t.Owned
	}
	inside := procs.below(t.Shims)
	for _, pid := range inside {
		if !slices.ContainsFunc(cgroupsOf(pid), s.OwnsCgroup) {
			return t, false
		}
	}
	t.Owned = len(inside) > 0
	return t, t.Owned || t.Bundle == "" && (len(t.Shims) > 0 || brokenOff(t, time.Now()))
}

// brokenOffAfter is far longer than runc takes to write the books of a container
// that it makes.
const brokenOffAfter = time.Minute

// brokenOff reports whether runc was killed before it had written its books: its
// directory for the container has been there for a while without them, and no
// process bears the container's ID, as runc and every containerd's shim do while
// they are at it. It is nobody's, whichever containerd's it was.
func brokenOff(t LeakedTask, now time.Time) bool {
	if t.RuncDir == "" {
		return false
	}
	at, err := os.Stat(t.RuncDir)
	if err != nil || now.Sub(at.ModTime()) < brokenOffAfter {
		return false
	}
	_, err = os.Lstat(filepath.Join(t.RuncDir, "state.json"))
	return errors.Is(err, fs.ErrNotExist) && !isBorne(t.ID)
}

func specOf(bundle string) (*specs.Spec, error) {
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

// runcState is what runc keeps of a container, as far as it matters here.
type runcState struct {
	Init   int `json:"init_process_pid"`
	Config struct {
		Labels  []string // annotations and bundle, as name=value
		Cgroups struct{ Path, Name, Parent string }
	} `json:"config"`
}

func booksOf(dir string) (state runcState, err error) {
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

// spec is the little of the container's runtime spec that the books repeat. With
// systemd the cgroup is told by its slice and name.
func (s runcState) spec() *specs.Spec {
	spec := &specs.Spec{Linux: &specs.Linux{CgroupsPath: s.Config.Cgroups.Path}}
	if spec.Linux.CgroupsPath == "" && s.Config.Cgroups.Parent != "" {
		spec.Linux.CgroupsPath = s.Config.Cgroups.Parent + ":" + s.Config.Cgroups.Name
	}
	if logs, ok := s.label(sandboxLogs); ok {
		spec.Annotations = map[string]string{sandboxLogs: logs}
	}
	return spec
}

// sandboxLogs is containerd's annotation of a sandbox's log directory.
const sandboxLogs = "io.kubernetes.cri.sandbox-log-directory"

func oursBySpec(spec *specs.Spec, s LeakSearch) bool {
	logs, said := spec.Annotations[sandboxLogs]
	if said && !below(logs, s.LogDir) {
		return false
	}
	cgroup := ""
	if spec.Linux != nil {
		cgroup = spec.Linux.CgroupsPath
	}
	if cgroup == "" { // containerd was told to keep out of cgroups
		return said
	}
	return s.OwnsCgroup(cgroup)
}

// below reports whether a path lies in a directory.
func below(path, dir string) bool {
	rel, err := filepath.Rel(dir, path)
	return dir != "" && err == nil && rel != "." && filepath.IsLocal(rel)
}
