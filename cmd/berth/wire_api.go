package main

import (
	"context"
	"errors"
	"fmt"
	goruntime "runtime"
	"slices"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"berth/agent/plan"
	"berth/agent/source"
	"berth/agent/status"
	"berth/cli"
	"berth/cli/explain"
	"berth/internal/nodeconfig"
	"berth/internal/strictyaml"
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
				return check.Local(ctx, check.LocalOptions{Flags: flags, Version: version, StoreFile: storeFile})
			},
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
		Check:       b.check,
		Eviction:    b.evictionOrder,
		Images:      b.listImages,
		Drain:       b.drainNode,
		Metrics:     b.metrics.Handler(),
		Version:     func(ctx context.Context) (nodeapi.Version, error) { return b.versionOf(ctx), nil },
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
		NextRetry: explain.NextRetries(explain.FromSnapshot(s, b.agent.Limits, b.runtime.progress), time.Now()),
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
	w := explain.Why(explain.FromSnapshot(s, b.agent.Limits, b.runtime.progress), time.Now())
	for _, other := range b.agent.StatusCache.ListByName(namespace, name) {
		if other.Pod.UID != s.Pod.UID && other.Syncs == 0 {
			w.OtherPods = append(
				w.OtherPods,
				explain.Why(explain.FromSnapshot(other, b.agent.Limits, b.runtime.progress), time.Now()).WaitingFor...)
		}
	}
	node.AddRuntimeProblem(&w)
	if node.WaitingForRuntime != "" || node.RuntimeProblem != "" {
		w.Next = nil // the next steps depend on the unknown state
	}
	return w, nil
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

// manifestErrors reports each error of a manifest as a separate cause, in the order of the
// manifest.
func manifestErrors(all strictyaml.Errors) error {
	err := apierrors.NewBadRequest(fmt.Sprintf("the manifest has %d errors", len(all)))
	err.ErrStatus.Details = &metav1.StatusDetails{}
	for _, e := range slices.SortedStableFunc(
		slices.Values(all), func(x, y *strictyaml.Error) int { return x.Line - y.Line },
	) {
		err.ErrStatus.Details.Causes = append(err.ErrStatus.Details.Causes,
			metav1.StatusCause{Type: metav1.CauseTypeFieldValueInvalid, Field: e.Field, Message: e.Error()})
	}
	return err
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
	if all, ok := errors.AsType[strictyaml.Errors](err); ok && len(all) > 1 {
		return nodeapi.PlanResult{}, manifestErrors(all)
	}
	if err != nil {
		return nodeapi.PlanResult{}, badRequest("%s", err)
	}
	planContext := explain.PlanContext{
		Limits: b.agent.Limits, Find: b.agent.StatusCache.Find, Objects: b.agent.ReferencedObjects,
		LocalImage: func(pod *corev1.Pod, image string, objects plan.Objects) (plan.Image, bool) {
			img, ok, err := b.runtime.images.Present(ctx, pod, image, objects)
			return img, ok && err == nil
		},
		Rejection: func(pod, replaced *corev1.Pod) string {
			state, err := b.agent.AllocatorState(ctx)
			if err != nil {
				return ""
			}
			if replaced != nil {
				state = state.Without(replaced)
			}
			return state.Rejection(pod)
		},
		Resize: func(old, pod *corev1.Pod) plan.Verdict {
			state, err := b.agent.AllocatorState(ctx)
			if err != nil {
				return plan.Verdict{State: plan.Admitted}
			}
			return state.CheckResize(old, pod)
		},
	}
	return explain.PlanManifest(desired, planContext, now), nil
}

func clientVersion() nodeapi.Version {
	return nodeapi.Version{
		Version: version, Commit: commit, Kubernetes: kubernetesVersion(), Go: goruntime.Version(),
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
		Live: nodeapi.HealthChecks{{Name: "loops", Check: func(context.Context) error {
			if ok, why := b.loops.Healthy(); !ok {
				return fmt.Errorf("%s", why)
			}
			return nil
		}}},
		Ready: nodeapi.HealthChecks{
			{Name: "runtime", Check: func(context.Context) error { return b.runtime.statuses.Healthy() }},
			{Name: "adopted", Check: func(context.Context) error {
				select {
				case <-b.agent.Ready():
					return nil
				default:
					return fmt.Errorf("state of the container runtime is not known yet")
				}
			}},
			{Name: "store", NonFatal: true, Check: func(context.Context) error {
				if bad, why := b.store.Degraded(); bad {
					return errors.New("pod records are only in memory: " + why)
				}
				return nil
			}},
		},
		Metrics: b.metrics.Handler(),
	}
}
