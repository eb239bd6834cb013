package networks

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/invoke"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/version"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"berth/agent/plan"
)

// pluginTimeout limits ADD, CHECK and DEL of one attachment.
const pluginTimeout = time.Minute

// checkWorkers is the number of sandboxes that are checked in parallel, so that a hanging plugin
// delays few others.
const checkWorkers = 4

// Options configures Networks.
type Options struct {
	Dir     string   // state directory; created when needed
	ConfDir string   // network configurations; may not exist
	BinDirs []string // plugins; searched in order
}

// Networks manages the additional networks of pods.
type Networks struct {
	opts    Options
	cni     *libcni.CNIConfig
	changed chan struct{} // signals a status that was not reported; capacity 1

	mu       sync.Mutex
	entries  map[string]*entry // by sandbox; entries are replaced, not modified
	creating map[types.UID]int // pods whose sandbox is being created
}

// Pod identifies the pod of a sandbox.
type Pod struct {
	Namespace string    `json:"namespace"`
	Name      string    `json:"name"`
	UID       types.UID `json:"uid"`
}

// ResolvedNetwork is a requested network with its configuration.
type ResolvedNetwork struct {
	attachment
	list *libcni.NetworkConfigList
}

// New reads the persisted entries. The error lists unreadable files. The returned Networks is
// usable in any case.
func New(o Options) (*Networks, error) { return newNetworks(o, nil) }

// newNetworks lets tests run the plugins in another environment.
func newNetworks(o Options, exec invoke.Exec) (*Networks, error) {
	entries, err := load(o.Dir)
	n := &Networks{opts: o, entries: entries, creating: map[types.UID]int{}, changed: make(chan struct{}, 1)}
	if exec == nil { // libcni would create it lazily and without locking
		exec = &invoke.DefaultExec{RawExec: &invoke.RawExec{Stderr: os.Stderr}, PluginDecoder: version.PluginDecoder{}}
	}
	n.cni = libcni.NewCNIConfigWithCacheDir(o.BinDirs, n.opts.Dir, exec)
	if len(entries) > 0 {
		n.changed <- struct{}{}
	}
	return n, err
}

// Resolve returns the networks that the pod requests. The error is a *plan.Error for users: an
// invalid annotation or an unknown network.
func (n *Networks) Resolve(pod *corev1.Pod) ([]ResolvedNetwork, error) {
	requested, err := requests(pod)
	if err != nil {
		return nil, planError(plan.Invalid, fmt.Errorf("annotation k8s.v1.cni.cncf.io/networks: %w", err))
	}
	var out []ResolvedNetwork
	for _, r := range requested {
		w, err := n.configuration(r)
		if err != nil {
			return nil, planError(plan.Network, err)
		}
		out = append(out, w)
	}
	return out, nil
}

func planError(kind plan.ErrorKind, err error) error {
	return &plan.Error{Kind: kind, Reason: "FailedCreatePodSandBox", Err: err}
}

// configuration finds a network by its name.
func (n *Networks) configuration(r Request) (ResolvedNetwork, error) {
	files, err := libcni.ConfFiles(n.opts.ConfDir, []string{".conflist"})
	if err != nil {
		return ResolvedNetwork{}, fmt.Errorf("network %q: %w", r.Name, err)
	}
	slices.Sort(files)
	var bad []error
	for _, file := range files {
		list, err := libcni.ConfListFromFile(file)
		if err != nil {
			bad = append(bad, fmt.Errorf("%s: %w", file, err))
			continue
		}
		if list.Name != r.Name {
			continue
		}
		w := ResolvedNetwork{attachment: attachment{Request: r, Config: list.Bytes}, list: list}
		w.Capabilities, err = r.capabilities(list)
		return w, err
	}
	if len(bad) > 0 {
		return ResolvedNetwork{}, fmt.Errorf(
			"network %q not found in the readable files of %s: %w",
			r.Name,
			n.opts.ConfDir,
			errors.Join(bad...),
		)
	}
	return ResolvedNetwork{}, fmt.Errorf("network %q not found in any *.conflist of %s", r.Name, n.opts.ConfDir)
}

// capabilities returns the capability arguments of the request. Every argument needs a plugin that
// supports it.
func (r *Request) capabilities(list *libcni.NetworkConfigList) (map[string]any, error) {
	out := map[string]any{}
	if len(r.IPs) > 0 {
		out["ips"] = r.IPs
	}
	if r.MAC != "" {
		out["mac"] = r.MAC
	}
	for name := range out {
		if !slices.ContainsFunc(list.Plugins, func(p *libcni.PluginConfig) bool {
			return p.Network.Capabilities[name]
		}) {
			return nil, fmt.Errorf("network %q: no plugin has the capability %s", r.Name, name)
		}
	}
	return out, nil
}

// SandboxCreating records that a sandbox of the pod is being created until the returned function is
// called.
func (n *Networks) SandboxCreating(uid types.UID) (end func()) {
	n.count(uid, 1)
	return func() { n.count(uid, -1) }
}

func (n *Networks) count(uid types.UID, by int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.creating[uid] += by; n.creating[uid] == 0 {
		delete(n.creating, uid)
	}
}

// Attached reports whether all networks of a sandbox are attached, and whether a sandbox of the pod
// is being created.
func (n *Networks) Attached(uid, sandbox string) (done, making bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	e := n.entries[sandbox]
	return e != nil && e.Done, n.creating[types.UID(uid)] > 0
}

// Attach attaches the networks of a sandbox. It first detaches what an earlier call has left. After
// an error some networks may be attached: Detach removes them.
func (n *Networks) Attach(ctx context.Context, sandbox, netns string, pod *corev1.Pod, wanted []ResolvedNetwork) error {
	if err := n.Detach(ctx, sandbox); err != nil {
		return err
	}
	e := &entry{Version: entryVersion, Sandbox: sandbox, NetNS: netns, Pod: Pod{pod.Namespace, pod.Name, pod.UID}}
	for _, w := range wanted {
		e.Attachments = append(e.Attachments, w.attachment)
	}
	if err := n.put(e); err != nil { // S1
		return planError(plan.Other, err)
	}
	done := *e
	done.Done = true
	for _, w := range wanted {
		status, err := n.add(ctx, e, w)
		if err != nil {
			return planError(plan.Network, fmt.Errorf("attach network %q as %s: %w", w.Request.Name,
				w.Request.Interface, err))
		}
		done.Status = append(done.Status, status)
	}
	if err := n.put(&done); err != nil {
		return planError(plan.Other, err)
	}
	return nil
}

func (n *Networks) put(e *entry) error {
	if err := e.save(n.opts.Dir); err != nil {
		return fmt.Errorf("save networks of sandbox %.12s: %w", e.Sandbox, err)
	}
	n.mu.Lock()
	n.entries[e.Sandbox] = e
	n.mu.Unlock()
	return nil
}

func (n *Networks) add(ctx context.Context, e *entry, w ResolvedNetwork) (Status, error) {
	ctx, cancel := context.WithTimeout(ctx, pluginTimeout)
	defer cancel()
	result, err := n.cni.AddNetworkList(ctx, w.list, n.runtimeConf(e, w.attachment))
	if err != nil {
		return Status{}, err
	}
	r, err := types100.NewResultFromResult(result)
	if err != nil {
		return Status{}, err
	}
	return statusOf(e.Pod.Namespace, w.Request, r), nil
}

func (n *Networks) runtimeConf(e *entry, a attachment) *libcni.RuntimeConf {
	rt := &libcni.RuntimeConf{
		ContainerID: e.Sandbox, IfName: a.Request.Interface, CapabilityArgs: a.Capabilities, CacheDir: n.opts.Dir,
		Args: [][2]string{
			{"IgnoreUnknown", "1"}, {"K8S_POD_NAMESPACE", e.Pod.Namespace}, {"K8S_POD_NAME", e.Pod.Name},
			{"K8S_POD_INFRA_CONTAINER_ID", e.Sandbox}, {"K8S_POD_UID", string(e.Pod.UID)},
		},
	}
	if isNamespace(e.NetNS) { // after a reboot it does not exist, and DEL runs without it
		rt.NetNS = e.NetNS
	}
	return rt
}

// Detach detaches the networks of a sandbox in reverse order. It costs nothing if there are none,
// and it may be repeated.
func (n *Networks) Detach(ctx context.Context, sandbox string) error {
	n.mu.Lock()
	e := n.entries[sandbox]
	if e != nil {
		e.detaching = true
	}
	n.mu.Unlock()
	if e == nil {
		return nil
	}
	var errs []error
	for _, a := range slices.Backward(e.Attachments) {
		if err := n.del(ctx, e, a); err != nil {
			errs = append(errs, fmt.Errorf("detach network %q from %s: %w", a.Request.Name, a.Request.Interface, err))
		}
	}
	if len(errs) == 0 {
		errs = append(errs, e.remove(n.opts.Dir))
	}
	if err := errors.Join(errs...); err != nil {
		return &plan.Error{Kind: plan.Network, Reason: "FailedKillPod", Err: err}
	}
	n.mu.Lock()
	delete(n.entries, sandbox)
	n.mu.Unlock()
	return nil
}

func (n *Networks) del(ctx context.Context, e *entry, a attachment) error {
	list, err := libcni.ConfListFromBytes(a.Config)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, pluginTimeout)
	defer cancel()
	return n.cni.DelNetworkList(ctx, list, n.runtimeConf(e, a))
}

// Orphaned lists the sandboxes with networks that are not known.
func (n *Networks) Orphaned(known func(id string) bool) (ids []string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for id := range n.entries {
		if !known(id) {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	return ids
}

// CheckFailure is an attachment that differs from its desired state.
type CheckFailure struct {
	Pod     Pod
	Message string
}

// Check runs CHECK for all attachments and returns failures that differ from the last reported one.
// When ctx ends, it returns early without the interrupted checks. Networks with a CNI version
// before 0.4.0 do not support CHECK.
func (n *Networks) Check(ctx context.Context) (out []CheckFailure) {
	entries := n.all(func(e *entry) bool { return e.Done && !e.detaching })
	found := make([]string, len(entries))
	next := make(chan int)
	var work sync.WaitGroup
	for range min(checkWorkers, len(entries)) {
		work.Go(func() {
			for i := range next {
				found[i] = n.newFailure(ctx, entries[i])
			}
		})
	}
	for i := range entries {
		next <- i
	}
	close(next)
	work.Wait()
	for i, text := range found {
		if text != "" {
			out = append(out, CheckFailure{entries[i].Pod, text})
		}
	}
	return out
}

// newFailure returns the failure of a sandbox if it differs from the last one. Empty: none. A
// sandbox that is being removed has no failures.
func (n *Networks) newFailure(ctx context.Context, e *entry) string {
	if !isNamespace(e.NetNS) {
		return ""
	}
	var wrong []string
	for _, a := range e.Attachments {
		err := n.checkOne(ctx, e, a)
		if ctx.Err() != nil {
			return ""
		}
		if err != nil {
			wrong = append(wrong, fmt.Sprintf("network %q on %s: %v", a.Request.Name, a.Request.Interface, err))
		}
	}
	text := strings.Join(wrong, "; ")
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.entries[e.Sandbox] != e || e.detaching || e.lastFailure == text || !isNamespace(e.NetNS) {
		return ""
	}
	e.lastFailure = text
	return text
}

func (n *Networks) checkOne(ctx context.Context, e *entry, a attachment) error {
	list, err := libcni.ConfListFromBytes(a.Config)
	if err != nil {
		return err
	}
	if able, err := version.GreaterThanOrEqualTo(list.CNIVersion, "0.4.0"); err != nil || !able || list.DisableCheck {
		return err
	}
	of, cancel := context.WithTimeout(ctx, pluginTimeout)
	defer cancel()
	err = n.cni.CheckNetworkList(of, list, n.runtimeConf(e, a))
	if err != nil && of.Err() != nil {
		return fmt.Errorf("CHECK timed out after %v", pluginTimeout)
	}
	return err
}

// all returns the selected entries, sorted by sandbox.
func (n *Networks) all(which func(*entry) bool) (out []*entry) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, e := range n.entries {
		if which(e) {
			out = append(out, e)
		}
	}
	slices.SortFunc(out, func(a, b *entry) int { return cmp.Compare(a.Sandbox, b.Sandbox) })
	return out
}

// nsfs is the magic number of the namespace file system.
const nsfs = 0x6e736673

func isNamespace(path string) bool {
	var fsys unix.Statfs_t
	return path != "" && unix.Statfs(path, &fsys) == nil && fsys.Type == nsfs
}
