package main

import (
	"context"
	"encoding/json"
	"fmt"
	"path/filepath"
	"time"

	"google.golang.org/grpc"
	"k8s.io/apimachinery/pkg/types"

	"berth/agent"
	"berth/agent/criruntime"
	"berth/agent/metrics"
	"berth/agent/ownership"
	"berth/agent/plan"
	"berth/cri"
	"berth/cri/criconfig"
	"berth/images"
	"berth/internal/exits"
	"berth/internal/nodeconfig"
)

// runtime is the container runtime.
type runtime struct {
	b        *berth
	client   *cri.Client
	pods     *criruntime.Runtime
	statuses *cri.StatusWatcher
	driver   cri.DriverVerification
	images   *images.Manager
	exits    *exits.Watcher
}

func newRuntime(ctx context.Context, b *berth) (r *runtime, err error) {
	r = &runtime{b: b}
	r.exits = exits.New(exits.Options{
		Process: func(ctx context.Context, id string) (int, error) { return r.client.ContainerPID(ctx, id) },
		Log:     b.log,
	})
	if r.client, err = r.dial(ctx); err != nil {
		return nil, err
	}
	r.pods = &criruntime.Runtime{Client: r.client, Verify: r.driver.Verify, Adopted: r.adopted, Log: b.log}
	r.driver.Runtime = r.client.CgroupDriver
	r.driver.Current = func() string { return b.host.cgroups.Driver() }
	r.statuses = r.newStatusWatcher()
	if r.images, err = r.newImages(); err != nil {
		return nil, err
	}
	return r, nil
}

func (r *runtime) dial(ctx context.Context) (*cri.Client, error) {
	b := r.b
	return cri.Dial(ctx, cri.Options{
		RuntimeEndpoint:   b.config.RuntimeEndpoint,
		ImageEndpoint:     b.config.ImageEndpoint,
		UnaryInterceptors: []grpc.UnaryClientInterceptor{metrics.RuntimeCalls(b.metrics, b.traces)},
		Node:              func() criconfig.Node { return b.host.criNode() },
		LogLinkDir:        nodeconfig.LogLinksDir,
		Warn:              func(err error) { b.log.Warn("runtime warning", "err", err) },
		WarnPod:           b.warnPod,
		ExitRecorder:      r.exits,
		Instance:          ownership.Instance(b.config.RootDir),
		OwnsUnlabeled:     func(uid types.UID) bool { return b.host.owner.OwnsUnlabeled(uid) },
		Unmarked:          func(uid types.UID) bool { return b.host.unmarked(uid) },
		OnEventStream:     b.metrics.CountEventStream,
		OnEventDelay:      b.metrics.ObserveEventDelay,
		NetworksAttached: func(uid, sandbox string) (attached, attaching bool) {
			return b.host.networks.Attached(uid, sandbox)
		},
	})
}

func (r *runtime) newImages() (*images.Manager, error) {
	b := r.b
	node, err := b.nodeCredentials()
	if err != nil {
		return nil, err
	}
	return images.New(images.Options{
		Node:                     node,
		Service:                  r.client.ImageService(),
		MaxParallel:              b.config.Images.MaxParallel,
		QPS:                      float64(b.config.Images.PullQPS),
		Burst:                    b.config.Images.PullBurst,
		Warn:                     b.warnPod,
		OnCheck:                  b.metrics.CountImageMustPullCheck,
		DiskSpace:                b.imageSpace,
		FreeSpace:                b.freeSpaceForPull,
		OnWaitingForSpaceChanged: func() { b.agent.SyncAllPods() },
		Standalone:               b.config.Standalone(),
		DownloadProgress:         func() string { return r.client.DownloadSummary(b.serveCtx) },
		Verify: images.Verification{
			Policy: b.config.Images.VerificationPolicy, Allowlist: b.config.Images.VerificationAllowlist,
			RecordsDir: filepath.Join(b.config.RootDir, "image_manager"),
		},
	}), nil
}

func (r *runtime) newStatusWatcher() *cri.StatusWatcher {
	b := r.b
	return cri.NewStatusWatcher(cri.StatusWatcherOptions{
		Status: r.client.Status, VerifyDriver: r.driver.Verify, NetworkProblem: r.networkProblem, Log: b.log,
		OnStatus: func(st cri.Status) {
			b.admissionNode.SetSupplementalGroupsPolicy(st.SupplementalGroupsPolicy)
		},
		OnNetworkChanged: func(plan.NetworkStatus) { b.agent.SyncAllPods() },
		OnReadinessChanged: func() {
			if b.cluster != nil {
				b.cluster.registration.Trigger()
			}
		},
	})
}

// watch watches the runtime's status. It returns before ctx ends only for a restart.
func (r *runtime) watch(ctx context.Context) error {
	loop := r.b.loops.Watch("runtime status", time.Minute)
	heartbeat := func() {
		loop.Beat()
		hang("runtime status")
	}
	if err := r.statuses.Run(ctx, heartbeat); err != nil {
		r.b.log.Info("runtime cgroup driver changed, restarting", "err", err)
		return fmt.Errorf("%w: %w", err, errReload)
	}
	return nil
}

// networkProblem returns why the network configuration cannot be used; empty: it can.
func (r *runtime) networkProblem() string {
	ok, why := r.b.host.network.Ready()
	if ok {
		return ""
	}
	if r.b.config.Network.PodCIDRsFromNode && !r.b.host.hasPodCIDRs.Load() {
		why += ": it is created when the API server assigns a pod CIDR to the node (spec.podCIDRs)"
	}
	return why
}

// networkChanged triggers a status request immediately. A pod that starts in the meantime could get
// a sandbox without a network, which cannot be removed without one.
func (r *runtime) networkChanged() {
	r.statuses.Recheck()
	r.b.agent.SyncAllPods()
}

// adopted restores what the node knows of a running pod.
func (r *runtime) adopted(uid types.UID, pod agent.RuntimePod) {
	r.b.devices.RestoreAllocations(uid, pod.Containers)
	r.b.podAdopted(pod.Pod, pod.Sandboxes)
}

// progress describes the progress of an action; empty: unknown.
func (r *runtime) progress(a plan.Action) string {
	if p, pull := a.(plan.PullImage); pull {
		return r.images.PullStatus(p.Image)
	}
	return ""
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
		b.log.Warn("shim socket directories unavailable from the store, restoring them from the runtime", "err", err)
	}
	b.runtime.client.SetSocketDirs(dirs, func(dirs []string) {
		if text, err := json.Marshal(dirs); err == nil { // marshaling strings cannot fail
			b.store.PutNodeValue(socketsKey, text)
		}
	})
}
