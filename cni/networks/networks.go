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

// bound is for the plugins to make, look at or take away one attachment.
const bound = time.Minute

// checkers is how many sandboxes are looked at at once: a plugin that hangs holds
// up few others.
const checkers = 4

// Options says where things are.
type Options struct {
	Dir     string   // of the agent's state; made when it is needed
	ConfDir string   // configurations; need not exist
	BinDirs []string // plugins; looked at in order
}

// Networks are the networks of pods beside the runtime's.
type Networks struct {
	opts    Options
	cni     *libcni.CNIConfig
	changed chan struct{} // readable: there is a status that nobody was told; capacity 1

	mu      sync.Mutex
	entries map[string]*entry // by sandbox; an entry is replaced, not changed
	making  map[types.UID]int // pods whose sandbox is being made
}

// Pod says whose a sandbox is.
type Pod struct {
	Namespace string    `json:"namespace"`
	Name      string    `json:"name"`
	UID       types.UID `json:"uid"`
}

// ResolvedNetwork is a network that a pod asks for, and how it is made.
type ResolvedNetwork struct {
	attachment
	list *libcni.NetworkConfigList
}

// New reads what an earlier life has kept. The error tells of files that could not
// be read; the networks are usable all the same.
func New(o Options) (*Networks, error) { return with(o, nil) }

// with runs the plugins by something else than the host itself, for tests.
func with(o Options, exec invoke.Exec) (*Networks, error) {
	entries, err := load(o.Dir)
	n := &Networks{opts: o, entries: entries, making: map[types.UID]int{}, changed: make(chan struct{}, 1)}
	if exec == nil { // libcni would make it at its first use, of which there may be two at once
		exec = &invoke.DefaultExec{RawExec: &invoke.RawExec{Stderr: os.Stderr}, PluginDecoder: version.PluginDecoder{}}
	}
	n.cni = libcni.NewCNIConfigWithCacheDir(o.BinDirs, n.opts.Dir, exec)
	if len(entries) > 0 {
		n.changed <- struct{}{}
	}
	return n, err
}

// Resolve lists the networks that the pod asks for; none: it asks for none. The
// error is a *plan.Error for the user: a mistake, or a network that is not there.
func (n *Networks) Resolve(pod *corev1.Pod) ([]ResolvedNetwork, error) {
	asked, err := requests(pod)
	if err != nil {
		return nil, failed(plan.Invalid, fmt.Errorf("annotation k8s.v1.cni.cncf.io/networks: %w", err))
	}
	var out []ResolvedNetwork
	for _, r := range asked {
		w, err := n.configuration(r)
		if err != nil {
			return nil, failed(plan.Network, err)
		}
		out = append(out, w)
	}
	return out, nil
}

func failed(kind plan.Kind, err error) error {
	return &plan.Error{Kind: kind, Reason: "FailedCreatePodSandBox", Err: err}
}

// configuration finds a network by the name in its file.
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
		return ResolvedNetwork{}, fmt.Errorf("network %q is in no file of %s that can be read: %w", r.Name, n.opts.ConfDir, errors.Join(bad...))
	}
	return ResolvedNetwork{}, fmt.Errorf("network %q is in no *.conflist of %s", r.Name, n.opts.ConfDir)
}

// capabilities hands what the request says to the plugins that take it.
func (r *Request) capabilities(list *libcni.NetworkConfigList) (map[string]any, error) {
	out := map[string]any{}
	if len(r.IPs) > 0 {
		out["ips"] = r.IPs
	}
	if r.MAC != "" {
		out["mac"] = r.MAC
	}
	for name := range out {
		if !slices.ContainsFunc(list.Plugins, func(p *libcni.PluginConfig) bool { return p.Network.Capabilities[name] }) {
			return nil, fmt.Errorf("network %q: no plugin of it has the capability %s", r.Name, name)
		}
	}
	return out, nil
}

// SandboxCreating notes that a sandbox of the pod is being made; the function that it
// returns notes that it is not any more.
func (n *Networks) SandboxCreating(uid types.UID) (end func()) {
	n.count(uid, 1)
	return func() { n.count(uid, -1) }
}

func (n *Networks) count(uid types.UID, by int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.making[uid] += by; n.making[uid] == 0 {
		delete(n.making, uid)
	}
}

// Attached reports whether a sandbox that is to have networks has them all, and
// if not whether they may be under way.
func (n *Networks) Attached(uid, sandbox string) (done, making bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	e := n.entries[sandbox]
	return e != nil && e.Done, n.making[types.UID(uid)] > 0
}

// Attach makes the networks of a sandbox. Where it fails some may be there: Detach
// takes them away. What an earlier call has left is taken away first.
func (n *Networks) Attach(ctx context.Context, sandbox, netns string, pod *corev1.Pod, wanted []ResolvedNetwork) error {
	if err := n.Detach(ctx, sandbox); err != nil {
		return err
	}
	e := &entry{Version: entryVersion, Sandbox: sandbox, NetNS: netns, Pod: Pod{pod.Namespace, pod.Name, pod.UID}}
	for _, w := range wanted {
		e.Attachments = append(e.Attachments, w.attachment)
	}
	if err := n.put(e); err != nil { // S1
		return failed(plan.Other, err)
	}
	done := *e
	done.Done = true
	for _, w := range wanted {
		status, err := n.add(ctx, e, w)
		if err != nil {
			return failed(plan.Network, fmt.Errorf("attach network %q as %s: %w", w.Request.Name, w.Request.Interface, err))
		}
		done.Status = append(done.Status, status)
	}
	if err := n.put(&done); err != nil {
		return failed(plan.Other, err)
	}
	return nil
}

func (n *Networks) put(e *entry) error {
	if err := e.keep(n.opts.Dir); err != nil {
		return fmt.Errorf("keep what networks sandbox %.12s has: %w", e.Sandbox, err)
	}
	n.mu.Lock()
	n.entries[e.Sandbox] = e
	n.mu.Unlock()
	return nil
}

func (n *Networks) add(ctx context.Context, e *entry, w ResolvedNetwork) (Status, error) {
	ctx, cancel := context.WithTimeout(ctx, bound)
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
	if isNamespace(e.NetNS) { // it goes with the power, and then DEL does without
		rt.NetNS = e.NetNS
	}
	return rt
}

// Detach takes a sandbox's networks away, the last first. Without any it costs
// nothing, and it may be repeated.
func (n *Networks) Detach(ctx context.Context, sandbox string) error {
	n.mu.Lock()
	e := n.entries[sandbox]
	if e != nil {
		e.leaving = true
	}
	n.mu.Unlock()
	if e == nil {
		return nil
	}
	var errs []error
	for _, a := range slices.Backward(e.Attachments) {
		if err := n.del(ctx, e, a); err != nil {
			errs = append(errs, fmt.Errorf("detach network %q at %s: %w", a.Request.Name, a.Request.Interface, err))
		}
	}
	if len(errs) == 0 {
		errs = append(errs, e.drop(n.opts.Dir))
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
	ctx, cancel := context.WithTimeout(ctx, bound)
	defer cancel()
	return n.cni.DelNetworkList(ctx, list, n.runtimeConf(e, a))
}

// Orphaned lists the sandboxes that have networks and are not known.
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

// CheckFailure is an attachment that is not as it was made.
type CheckFailure struct {
	Pod     Pod
	Message string
}

// Check asks the plugins whether the attachments are as they were made, and tells
// what is wrong and was not told before. It returns soon after the end of ctx, and
// tells nothing of what that has cut off. Networks before CNI 0.4.0 cannot say.
func (n *Networks) Check(ctx context.Context) (out []CheckFailure) {
	entries := n.all(func(e *entry) bool { return e.Done && !e.leaving })
	found := make([]string, len(entries))
	next := make(chan int)
	var work sync.WaitGroup
	for range min(checkers, len(entries)) {
		work.Go(func() {
			for i := range next {
				found[i] = n.news(ctx, entries[i])
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

// news is what CHECK says of a sandbox and did not say before; empty: nothing. A
// sandbox that is being taken down is not as it was made, and that is none.
func (n *Networks) news(ctx context.Context, e *entry) string {
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
			wrong = append(wrong, fmt.Sprintf("network %q at %s: %v", a.Request.Name, a.Request.Interface, err))
		}
	}
	text := strings.Join(wrong, "; ")
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.entries[e.Sandbox] != e || e.leaving || e.wrong == text || !isNamespace(e.NetNS) {
		return ""
	}
	e.wrong = text
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
	of, cancel := context.WithTimeout(ctx, bound)
	defer cancel()
	err = n.cni.CheckNetworkList(of, list, n.runtimeConf(e, a))
	if err != nil && of.Err() != nil {
		return fmt.Errorf("no plugin has said within %v that it is as it was made", bound)
	}
	return err
}

// all lists entries in order of their sandboxes.
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

// nsfs is the kernel's number for the file system of namespaces.
const nsfs = 0x6e736673

func isNamespace(path string) bool {
	var fsys unix.Statfs_t
	return path != "" && unix.Statfs(path, &fsys) == nil && fsys.Type == nsfs
}
