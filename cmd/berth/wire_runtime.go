package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"k8s.io/apimachinery/pkg/types"

	"berth/agent"
	"berth/agent/plan"
	"berth/agent/pod"
	"berth/cni"
	"berth/cri"
	"berth/cri/criconfig"
	"berth/images"
	"berth/internal/exits"
)

// runtime adapts the container runtime to the stages of the agent.
type runtime struct {
	b               *berth
	client          *cri.Client
	images          *images.Manager
	exits           *exits.Watcher
	status          atomic.Pointer[cri.Status] // nil: not received yet
	connectionError atomic.Pointer[string]     // the current connection error; nil: none
	recheck         chan struct{}              // triggers a status request after a change of the network configuration
}

func newRuntime(ctx context.Context, b *berth) (*runtime, error) {
	r := &runtime{b: b, recheck: make(chan struct{}, 1)}
	r.exits = exits.New(
		exits.Options{
			Process: func(ctx context.Context, id string) (int, error) { return r.client.ContainerPID(ctx, id) },
			Log:     b.log,
		},
	)
	client, err := cri.Dial(ctx, cri.Options{
		RuntimeEndpoint:   b.config.RuntimeEndpoint,
		ImageEndpoint:     b.config.ImageEndpoint,
		UnaryInterceptors: []grpc.UnaryClientInterceptor{b.measureCall},
		Node:              func() criconfig.Node { return b.host.criNode() },
		LogLinkDir:        logLinks,
		Warn:              func(err error) { b.log.Warn("runtime", "err", err) },
		WarnPod:           b.warnPod,
		ExitRecorder:      r.exits,
		NetworksAttached: func(uid, sandbox string) (attached, attaching bool) {
			return b.host.networks.Attached(uid, sandbox)
		},
	})
	if err != nil {
		return nil, err
	}
	r.client = client
	r.images = images.New(images.Options{
		Service:                  client.ImageService(),
		MaxParallel:              b.config.Images.MaxParallel,
		QPS:                      float64(b.config.Images.PullQPS),
		Burst:                    b.config.Images.PullBurst,
		Warn:                     b.warnPod,
		OnCheck:                  b.metrics.CountImageMustPullCheck,
		DiskSpace:                b.imageSpace,
		FreeSpace:                b.freeSpaceForPull,
		OnWaitingForSpaceChanged: func() { b.agent.SyncAllPods() },
		Standalone:               b.config.Standalone(),
		DownloadProgress:         r.downloadProgress,
		Verify: images.Verification{
			Policy: b.config.Images.VerificationPolicy, Allowlist: b.config.Images.VerificationAllowlist,
			RecordsDir: filepath.Join(b.config.RootDir, "image_manager"),
		},
	})
	return r, nil
}

const (
	logLinks         = "/var/log/containers"
	statusPeriod     = 5 * time.Second
	statusFastPeriod = 250 * time.Millisecond // while a condition is not ready
	pollPeriod       = time.Second            // for a runtime without events
	cniReloadTime    = 2 * time.Second        // for the runtime to load a changed network configuration
)

// watch polls the runtime's status, more often while it is not ready. It returns before ctx ends
// only for a restart, see verifyDriver.
func (r *runtime) watch(ctx context.Context) error {
	loop := r.b.loops.Watch("runtime status", time.Minute)
	var changed time.Time // of the network configuration
	lastReason := ""
	for ctx.Err() == nil {
		loop.Beat()
		hang("runtime status")
		wait := statusPeriod
		before := r.network()
		st, err := r.client.Status(ctx)
		if err != nil {
			text := err.Error()
			r.connectionError.Store(&text)
			wait = statusFastPeriod
		} else {
			if err := r.verifyDriver(ctx); errors.Is(err, errCgroupDriverChanged) {
				r.b.log.Info("restarting", "err", err)
				return err
			}
			r.connectionError.Store(nil)
			r.status.Store(&st)
			r.b.admissionNode.SetSupplementalGroupsPolicy(st.SupplementalGroupsPolicy)
			if !st.Ready || !st.NetworkReady || time.Since(changed) < cniReloadTime {
				wait = statusFastPeriod
			}
		}
		if now := r.network(); now != before {
			r.b.log.Info("network", "ready", now.Ready, "message", now.Message)
			r.b.agent.SyncAllPods()
		}
		if why := r.notReady(); r.b.cluster != nil && why != lastReason {
			lastReason = why
			r.b.cluster.registration.Trigger()
		}
		select {
		case <-ctx.Done():
		case <-r.recheck:
			changed = time.Now()
		case <-time.After(wait):
		}
	}
	return nil
}

// networkChanged triggers a status request immediately. A pod that starts in the meantime could get
// a sandbox without a network, which cannot be removed without one.
func (r *runtime) networkChanged() {
	select {
	case r.recheck <- struct{}{}:
	default:
	}
	r.b.agent.SyncAllPods()
}

// sandboxImage returns the sandbox image, for a runtime that does not pin it.
func (r *runtime) sandboxImage(ctx context.Context) []string {
	info, err := r.client.StatusInfo(ctx)
	if err != nil {
		return nil
	}
	var config struct {
		SandboxImage string `json:"sandboxImage"`
	}
	if json.Unmarshal(info["config"], &config) != nil || config.SandboxImage == "" {
		return nil // pinned
	}
	return []string{config.SandboxImage}
}

// network returns the network readiness of the runtime, with a more specific message if possible.
func (r *runtime) network() plan.NetworkStatus {
	st := r.status.Load()
	switch {
	case st == nil:
		return plan.NetworkStatus{Message: "the container runtime has not reported its status yet"}
	case st.NetworkReady:
		return plan.NetworkStatus{Ready: true}
	}
	if ok, why := r.b.host.network.Ready(); !ok {
		if r.b.config.Network.PodCIDRsFromNode && !r.b.host.hasPodCIDRs.Load() {
			why += ": it is created when the API server assigns a pod CIDR to the node (spec.podCIDRs)"
		}
		return plan.NetworkStatus{Message: why}
	}
	return plan.NetworkStatus{Message: st.NetworkMessage}
}

// Pod returns the sandboxes and containers of one pod.
func (r *runtime) Pod(ctx context.Context, uid types.UID) ([]plan.Sandbox, []plan.Container, error) {
	p, err := r.client.Pod(ctx, uid)
	return p.Sandboxes, p.Containers, err
}

// Container returns the details of one container.
func (r *runtime) Container(ctx context.Context, id string) (plan.Container, error) {
	return r.client.Container(ctx, id)
}

// Pods returns every pod created by berth with full details, for adoption at startup.
func (r *runtime) Pods(ctx context.Context) (map[types.UID]agent.RuntimePod, error) {
	if err := r.verifyDriver(ctx); err != nil {
		return nil, err
	}
	listed, err := r.client.Pods(ctx)
	if err != nil {
		return nil, err
	}
	out := make(map[types.UID]agent.RuntimePod, len(listed))
	for uid, meta := range listed {
		full, err := r.client.Pod(ctx, uid)
		if err != nil {
			return nil, err
		}
		out[uid] = agent.RuntimePod{Pod: meta.Restore(), Sandboxes: full.Sandboxes, Containers: full.Containers}
		r.b.devices.RestoreAllocations(uid, full.Containers)
		cni.HostPorts{Log: r.b.log}.PodAdopted(out[uid].Pod, full.Sandboxes)
	}
	return out, nil
}

// List returns every pod created by berth, with existence and state only.
func (r *runtime) List(ctx context.Context) (map[types.UID]agent.RuntimePod, error) {
	listed, err := r.client.Pods(ctx)
	if err != nil {
		return nil, err
	}
	out := make(map[types.UID]agent.RuntimePod, len(listed))
	for uid, meta := range listed {
		out[uid] = agent.RuntimePod{Pod: meta.Restore(), Sandboxes: meta.Sandboxes, Containers: meta.Containers}
	}
	return out, nil
}

// progress describes the progress of an action; empty: unknown.
func (r *runtime) progress(a plan.Action) string {
	if p, pull := a.(plan.PullImage); pull {
		return r.images.PullStatus(p.Image)
	}
	return ""
}

// downloadsTimeout limits the query of optional progress information.
const downloadsTimeout = 500 * time.Millisecond

// downloadProgress describes the progress of the runtime's downloads.
func (r *runtime) downloadProgress() string {
	ctx, cancel := context.WithTimeout(r.b.serveCtx, downloadsTimeout)
	defer cancel()
	d, err := r.client.DownloadProgress(ctx)
	if err != nil || d.Blobs == 0 {
		return ""
	}
	mib := func(n int64) float64 { return float64(n) / (1 << 20) }
	return fmt.Sprintf("downloads of the runtime: %.1f of %.1f MiB", mib(d.Received), mib(d.Total))
}

// Watch forwards the runtime's events, or polls a runtime without events.
func (r *runtime) Watch(ctx context.Context, handle func(types.UID, pod.RuntimeEvent)) error {
	forward := func(e cri.Event) {
		h := pod.RuntimeEvent{Sandbox: e.Sandbox, Containers: e.Containers, Incomplete: e.Hint}
		if e.Listed != nil {
			h.Listed = &pod.Listing{Sandboxes: e.Listed.Sandboxes, Containers: e.Listed.Containers}
		}
		handle(e.UID, h)
	}
	err := r.client.Events(ctx, forward)
	if plan.KindOf(err) != plan.Unsupported {
		return err
	}
	r.b.log.Info("runtime events unavailable, polling", "every", pollPeriod)
	return r.client.Poll(ctx, pollPeriod, forward)
}

// errCgroupDriverChanged restarts the agent with the runtime's cgroup driver.
var errCgroupDriverChanged = fmt.Errorf(
	"the runtime uses another cgroup driver than assumed while it was unavailable: %w",
	errReload,
)

// verifyDriver verifies the cgroup driver that was assumed because the runtime was unavailable at
// startup. No pod is changed before. A different driver requires a restart, because all components
// were created for one driver. Pods keep running meanwhile.
func (r *runtime) verifyDriver(ctx context.Context) error {
	if !r.b.host.driverAssumed.Load() {
		return nil
	}
	driver, err := r.client.CgroupDriver(ctx)
	if err != nil {
		return err
	}
	if current := r.b.host.cgroups.Driver(); driver != current {
		return fmt.Errorf("%w (%s, not %s)", errCgroupDriverChanged, driver, current)
	}
	r.b.host.driverAssumed.Store(false)
	return nil
}

// socketsKey is the key of the directories of shim sockets in the store.
const socketsKey = "shim-sockets"

// persistSocketDirs lets the runtime client persist the directories of shim sockets.
func (b *berth) persistSocketDirs() {
	var dirs []string
	persisted, err := b.store.NodeValue(socketsKey)
	if err == nil && persisted != nil {
		err = json.Unmarshal(persisted, &dirs)
	}
	if err != nil {
		b.log.Warn(
			"shim socket directories are not available from the store, restoring them from the runtime",
			"err",
			err,
		)
	}
	b.runtime.client.SetSocketDirs(dirs, func(dirs []string) {
		if text, err := json.Marshal(dirs); err == nil { // marshaling strings cannot fail
			b.store.PutNodeValue(socketsKey, text)
		}
	})
}
