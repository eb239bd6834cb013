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
	"berth/cri"
	"berth/cri/criconfig"
	"berth/images"
	"berth/internal/exits"
)

// runtime is the container runtime as the agent's stages want it.
type runtime struct {
	b      *berth
	client *cri.Client
	images *images.Manager
	exits  *exits.Watcher
	status atomic.Pointer[cri.Status] // nil: never answered
	down   atomic.Pointer[string]     // why it does not answer; nil: it does
	again  chan struct{}              // the network's configuration changed: ask for the status soon
}

func newRuntime(ctx context.Context, b *berth) (*runtime, error) {
	r := &runtime{b: b, again: make(chan struct{}, 1)}
	r.exits = exits.New(exits.Options{Process: func(ctx context.Context, id string) (int, error) { return r.client.ContainerPID(ctx, id) }, Log: b.log})
	client, err := cri.Dial(ctx, cri.Options{
		RuntimeEndpoint:   b.config.RuntimeEndpoint,
		ImageEndpoint:     b.config.ImageEndpoint,
		UnaryInterceptors: []grpc.UnaryClientInterceptor{b.measureCall},
		Node:              func() criconfig.Node { return b.host.criNode() },
		LogLinkDir:        logLinks,
		Warn:              func(err error) { b.log.Warn("runtime", "err", err) },
		WarnPod:           b.warnOfPod,
		ExitRecorder:      r.exits,
		NetworksAttached:  func(uid, sandbox string) (done, making bool) { return b.host.networks.Attached(uid, sandbox) },
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
		Warn:                     b.warnOfPod,
		OnCheck:                  b.metrics.CountImageMustPullCheck,
		DiskSpace:                b.imageSpace,
		FreeSpace:                b.makeRoomForPull,
		OnWaitingForSpaceChanged: func() { b.agent.SyncAllPods() },
		Standalone:               b.config.Standalone(),
		DownloadProgress:         r.coming,
		Verify: images.Verification{
			Policy: b.config.Images.VerificationPolicy, Allowlist: b.config.Images.VerificationAllowlist, RecordsDir: filepath.Join(b.config.RootDir, "image_manager"),
		},
	})
	return r, nil
}

const (
	logLinks     = "/var/log/containers"
	statusPeriod = 5 * time.Second
	statusSoon   = 250 * time.Millisecond // while something is not ready
	pollPeriod   = time.Second            // of a runtime without events
	reloadBound  = 2 * time.Second        // for the runtime to take in a changed network
)

// watch keeps the runtime's own status, asked more often while it is not well.
// It ends before ctx only when the agent has to begin anew: see sameDriver.
func (r *runtime) watch(ctx context.Context) error {
	loop := r.b.loops.Watch("runtime status", time.Minute)
	var changed time.Time // of the network's configuration
	told := ""
	for ctx.Err() == nil {
		loop.Beat()
		stall("runtime status")
		wait := statusPeriod
		before := r.network()
		st, err := r.client.Status(ctx)
		if err != nil {
			text := err.Error()
			r.down.Store(&text)
			wait = statusSoon
		} else {
			if err := r.sameDriver(ctx); errors.Is(err, errOtherDriver) {
				r.b.log.Info("berth begins anew", "err", err)
				return err
			}
			r.down.Store(nil)
			r.status.Store(&st)
			r.b.offering.strictGroups(st.SupplementalGroupsPolicy)
			if !st.Ready || !st.NetworkReady || time.Since(changed) < reloadBound {
				wait = statusSoon
			}
		}
		if now := r.network(); now != before {
			r.b.log.Info("network", "ready", now.Ready, "message", now.Message)
			r.b.agent.SyncAllPods()
		}
		if why := r.notReady(); r.b.joined != nil && why != told {
			told = why
			r.b.joined.presence.Trigger()
		}
		select {
		case <-ctx.Done():
		case <-r.again:
			changed = time.Now()
		case <-time.After(wait):
		}
	}
	return nil
}

// networkChanged has the runtime asked again, rather than in a few seconds: a
// pod that starts meanwhile would get a sandbox that has no network and cannot
// be taken away without one.
func (r *runtime) networkChanged() {
	select {
	case r.again <- struct{}{}:
	default:
	}
	r.b.agent.SyncAllPods()
}

// sandboxImage names the image of sandboxes, for a runtime that does not pin it.
func (r *runtime) sandboxImage(ctx context.Context) []string {
	info, err := r.client.StatusInfo(ctx)
	if err != nil {
		return nil
	}
	var config struct {
		SandboxImage string `json:"sandboxImage"`
	}
	if json.Unmarshal(info["config"], &config) != nil || config.SandboxImage == "" {
		return nil // it is pinned then
	}
	return []string{config.SandboxImage}
}

// network is the node's network as the sandbox sees it: what the runtime says,
// with berth's own words for why.
func (r *runtime) network() plan.NetworkSeen {
	st := r.status.Load()
	switch {
	case st == nil:
		return plan.NetworkSeen{Message: "the container runtime has not answered yet"}
	case st.NetworkReady:
		return plan.NetworkSeen{Ready: true}
	}
	if ok, why := r.b.host.network.Ready(); !ok {
		if r.b.config.Network.PodCIDRsFromNode && !r.b.host.ranged.Load() {
			why += ": it is written when the server gives the node its pod range (spec.podCIDRs of the Node)"
		}
		return plan.NetworkSeen{Message: why}
	}
	return plan.NetworkSeen{Message: st.NetworkMessage}
}

// Pod is what the runtime has of one pod.
func (r *runtime) Pod(ctx context.Context, uid types.UID) ([]plan.Sandbox, []plan.Container, error) {
	p, err := r.client.Pod(ctx, uid)
	return p.Sandboxes, p.Containers, err
}

// Container is one container in full.
func (r *runtime) Container(ctx context.Context, id string) (plan.Container, error) {
	return r.client.Container(ctx, id)
}

// Pods reads every pod of ours in full. It is what the agent begins with.
func (r *runtime) Pods(ctx context.Context) (map[types.UID]agent.RuntimePod, error) {
	if err := r.sameDriver(ctx); err != nil {
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
		r.b.recallDevices(uid, out[uid])
		for _, s := range full.Sandboxes {
			if s.Ready && len(s.IPs) > 0 { // whoever made it may have died before it had told
				r.b.host.PodIPsChanged(out[uid].Pod, s.IPs)
			}
		}
	}
	return out, nil
}

// List is Pods by existence and state only.
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

// progress says how far an action of a pod has come; empty: nobody knows.
func (r *runtime) progress(a plan.Action) string {
	if p, pull := a.(plan.PullImage); pull {
		return r.images.PullStatus(p.Image)
	}
	return ""
}

// comingBound is how long who asks why waits for what is nice to know.
const comingBound = 500 * time.Millisecond

// coming says how far the runtime is with what it downloads.
func (r *runtime) coming() string {
	ctx, cancel := context.WithTimeout(r.b.life, comingBound)
	defer cancel()
	d, err := r.client.DownloadProgress(ctx)
	if err != nil || d.Blobs == 0 {
		return ""
	}
	mib := func(n int64) float64 { return float64(n) / (1 << 20) }
	return fmt.Sprintf("of what the runtime downloads now %.1f of %.1f MiB are here", mib(d.Received), mib(d.Total))
}

// Watch follows the runtime's events, or polls one that has none.
func (r *runtime) Watch(ctx context.Context, tell func(types.UID, agent.RuntimeEvent)) error {
	each := func(e cri.Event) {
		h := agent.RuntimeEvent{Sandbox: e.Sandbox, Containers: e.Containers, Incomplete: e.Hint}
		if e.Listed != nil {
			h.Listed = &agent.RuntimePod{Sandboxes: e.Listed.Sandboxes, Containers: e.Listed.Containers}
		}
		tell(e.UID, h)
	}
	err := r.client.Events(ctx, each)
	if plan.KindOf(err) != plan.Unsupported {
		return err
	}
	r.b.log.Info("the runtime has no events: it is polled", "every", pollPeriod)
	return r.client.Poll(ctx, pollPeriod, each)
}
