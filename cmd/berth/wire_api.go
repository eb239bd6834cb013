package main

import (
	"cmp"
	"context"
	"errors"
	goruntime "runtime"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"berth/agent/plan"
	"berth/agent/source"
	"berth/agent/status"
	"berth/cli"
	"berth/cli/explain"
	"berth/internal/cis"
	"berth/internal/nodeconfig"
	"berth/node"
	"berth/node/check"
	"berth/nodeapi"
)

func clientCommands(socket *string) []*cobra.Command {
	flags := &nodeconfig.Flags{}
	return cli.Commands(cli.Options{
		Dial: func() (*nodeapi.Client, error) { return nodeapi.Dial(*socket) },
		Check: &cli.LocalCheck{
			Flags: localFlags(flags),
			Run: func(ctx context.Context) (nodeapi.CheckReport, error) {
				return check.Local(ctx, check.LocalOptions{Flags: flags, Version: version})
			},
			CIS: func() (cis.Report, error) { return localCIS(flags) },
		},
	})
}

// handlers connects the endpoints of the local API.
func (b *berth) handlers() nodeapi.Handlers {
	return nodeapi.Handlers{
		Pods:        b.pods,
		WatchPods:   b.watchPods,
		Node:        b.nodeSummary,
		Describe:    b.describe,
		Events:      b.listEvents,
		WatchEvents: b.watchEvents,
		Logs:        b.logs,
		ExecURL:     b.execURL,
		Attach:      b.attach,
		DialPort:    b.dialPod,
		Top:         b.top,
		Restart:     b.restart,
		Debug:       b.debug,
		Why:         b.why,
		Timeline:    b.timeline,
		Probes:      b.probesOf,
		Plan:        b.planFor,
		Workloads:   b.listWorkloads, EditWorkload: b.editWorkload,
		DescribeWorkload: b.describeWorkload, WhyWorkload: b.whyWorkload,
		Check:    b.check,
		CIS:      func(context.Context) (cis.Report, error) { return checkCIS(b.config), nil },
		Eviction: b.evictionOrder,
		Images:   b.listImages,
		Drain:    b.drainNode,
		Services: b.listServices,
		DNS:      b.explainDNS,
		Metrics:  b.metrics.Handler(),
		Version:  func(ctx context.Context) (nodeapi.Version, error) { return b.versionOf(ctx), nil },
	}
}

// syncTimeout limits how long a request shortly after the start waits for the state of the pods.
const syncTimeout = 2 * time.Second

func (b *berth) find(ctx context.Context, namespace, name string) (*status.Snapshot, error) {
	b.agent.WaitForSync(ctx, syncTimeout)
	s, ok := b.agent.StatusCache.Find(namespace, name)
	if !ok {
		return nil, nodeapi.NotFound(name)
	}
	return s, nil
}

func (b *berth) pods(ctx context.Context) (*corev1.PodList, error) {
	b.agent.WaitForSync(ctx, syncTimeout)
	return b.agent.StatusCache.Objects(b.host.networks.Annotated), nil
}

func (b *berth) watchPods(ctx context.Context, send func(nodeapi.PodEvent) error) error {
	b.agent.WaitForSync(ctx, syncTimeout)
	return b.agent.StatusCache.Watch(ctx, func(n status.Event) error { return send(explain.PodEvent(n)) })
}

func (b *berth) listEvents(_ context.Context, req nodeapi.EventsRequest) (*corev1.EventList, error) {
	return &corev1.EventList{Items: b.events.Matching(req.Matches)}, nil
}

func (b *berth) watchEvents(
	ctx context.Context,
	req nodeapi.EventsRequest,
	send func(nodeapi.EventNotification) error,
) error {
	return b.events.Watch(ctx, req.Matches,
		func(e *corev1.Event) error { return send(nodeapi.EventNotification{Event: e}) },
		func(n int) error { return send(nodeapi.EventNotification{Missed: n}) })
}

// node returns the state of the node apart from its pods.
func (b *berth) node() explain.Node {
	n := explain.Node{Name: b.config.NodeName, Sources: b.agent.Snapshots()}
	n.WaitingForRuntime, n.WaitingSince = b.agent.WaitingForRuntime()
	n.RuntimeProblem = b.runtime.statuses.Problem()
	_, n.StoreProblem = b.store.Degraded()
	return n
}

func (b *berth) nodeSummary(context.Context) (nodeapi.NodeSummary, error) {
	s := b.node().Summary()
	s.Warnings = append(s.Warnings, b.pressure.Warnings()...)
	return s, nil
}

func (b *berth) describe(ctx context.Context, namespace, name string) (nodeapi.Description, error) {
	s, err := b.find(ctx, namespace, name)
	if err != nil {
		return nodeapi.Description{}, err
	}
	return nodeapi.Description{
		Pod: b.host.networks.Annotated(
			s.Object(),
		), Events: b.events.List(s.Pod.UID), Source: s.Pod.Annotations["kubernetes.io/config.source"],
		Warnings:  b.node().PodWarnings(namespace, name),
		NextRetry: explain.NextRetries(b.podState(s), time.Now()),
	}, nil
}

func (b *berth) why(ctx context.Context, namespace, name string) (nodeapi.PodExplanation, error) {
	s, err := b.find(ctx, namespace, name)
	node := b.node()
	if missing := node.InvalidManifest(name); err != nil && missing != "" {
		return nodeapi.PodExplanation{}, badRequest("%s", missing)
	} else if err != nil {
		return nodeapi.PodExplanation{}, err
	}
	waiting := b.agent.StatusCache.WaitingForName(s)
	why := node.Why(s, waiting, b.podState, time.Now())
	why.NetworkPolicies = b.services.policies.Explain(s.Pod.UID)
	return why, nil
}

// podState returns the state of a pod for explanations.
func (b *berth) podState(s *status.Snapshot) explain.PodState {
	return explain.FromSnapshot(s, b.agent.Limits, func(a plan.Action) string {
		return cmp.Or(b.runtime.progress(a), b.host.volumes.Progress(s.Pod.UID, plan.VolumeOf(a)))
	})
}

func (b *berth) timeline(ctx context.Context, namespace, name string) (nodeapi.Timeline, error) {
	s, err := b.find(ctx, namespace, name)
	if err != nil {
		return nodeapi.Timeline{}, err
	}
	t := b.agent.Timeline(ctx, s.Pod.UID)
	if t == nil {
		return nodeapi.Timeline{}, nodeapi.NotFound(name)
	}
	return explain.Timeline(s.Pod, t, time.Now()), nil
}

// podOf returns the known pod with that UID, or nil.
func (b *berth) podOf(uid types.UID) *corev1.Pod {
	if s, found := b.agent.StatusCache.Get(uid); found {
		return s.Pod
	}
	return nil
}

// planFor returns what applying a manifest would do.
func (b *berth) planFor(ctx context.Context, manifest []byte) (nodeapi.PlanResult, error) {
	now := time.Now()
	desired, err := source.Validate(
		source.Input{Path: "manifest", Data: manifest, Modified: now, Now: now, PreviousPod: b.podOf},
		source.Identity{NodeName: b.config.NodeName, SuffixNodeName: !b.config.Standalone()}, nil)
	if err != nil {
		return nodeapi.PlanResult{}, source.APIError(err)
	}
	return explain.PlanManifest(desired, b.planContext(ctx), now), nil
}

// planContext returns what a plan depends on besides the manifest.
func (b *berth) planContext(ctx context.Context) explain.PlanContext {
	out := explain.PlanContext{
		Limits: b.agent.Limits, Find: b.agent.StatusCache.Find, Objects: b.agent.ReferencedObjects,
		LocalImage: func(pod *corev1.Pod, image string, objects plan.Objects) (plan.Image, bool) {
			img, ok, err := b.runtime.images.Present(ctx, pod, image, objects)
			return img, ok && err == nil
		},
		Rejection: func(pod, replaced *corev1.Pod) string { return b.agent.Rejection(ctx, pod, replaced) },
		Resize:    func(old, pod *corev1.Pod) plan.Verdict { return b.agent.CheckResize(ctx, old, pod) },
	}
	if b.workloads != nil {
		out.Workloads = b.workloads.Preview
	}
	return out
}

func clientVersion() nodeapi.Version {
	return nodeapi.Version{
		Version: version, Commit: commit, Kubernetes: node.KubernetesVersion(), Go: goruntime.Version(),
		Platform: goruntime.GOOS + "/" + goruntime.GOARCH,
	}
}

func (b *berth) versionOf(ctx context.Context) nodeapi.Version {
	v := clientVersion()
	if name, number, err := b.runtime.client.Version(ctx); err == nil {
		v.Runtime = name + " " + number
	}
	return v
}

// health returns the checks of the health port.
func (b *berth) health() nodeapi.Health {
	return nodeapi.Health{
		Live: nodeapi.HealthChecks{{Name: "loops", Check: b.loopsHealthy}},
		Ready: nodeapi.HealthChecks{
			{Name: "runtime", Check: func(context.Context) error { return b.runtime.statuses.Healthy() }},
			{Name: "adopted", Check: b.runtimeKnown},
			{Name: "store", NonFatal: true, Check: b.storeHealthy},
		},
		Metrics: b.metrics.Handler(),
	}
}

func (b *berth) loopsHealthy(context.Context) error {
	if ok, why := b.loops.Healthy(); !ok {
		return errors.New(why)
	}
	return nil
}

func (b *berth) runtimeKnown(context.Context) error {
	select {
	case <-b.agent.Ready():
		return nil
	default:
		return errors.New("state of the container runtime is not known yet")
	}
}

func (b *berth) storeHealthy(context.Context) error {
	if bad, why := b.store.Degraded(); bad {
		return errors.New("pod records are only in memory: " + why)
	}
	return nil
}
