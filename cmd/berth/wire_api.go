package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	goruntime "runtime"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"berth/agent"
	"berth/agent/plan"
	"berth/agent/source"
	"berth/console"
	"berth/cri"
	"berth/cri/crilog"
	"berth/explain"
	"berth/nodeapi"
	"berth/nodeconfig"
)

func consoleCommands(socket *string) []*cobra.Command {
	flags := &nodeconfig.Flags{}
	return console.Commands(console.Options{
		Dial: func() (*nodeapi.Client, error) { return nodeapi.Dial(*socket) },
		Check: &console.LocalCheck{
			Flags: localFlags(flags),
			Run:   func(ctx context.Context) (nodeapi.CheckReport, error) { return checkHere(ctx, flags) },
		},
	})
}

// handlers answer the node's own commands.
func (b *berth) handlers() nodeapi.Handlers {
	return nodeapi.Handlers{
		Pods:      b.pods,
		WatchPods: b.watchPods,
		Node:      b.nodeSummary,
		Describe:  b.describe,
		Events:    b.listEvents,
		Logs:      b.logs,
		ExecURL:   b.execURL,
		Why:       b.why,
		Timeline:  b.timeline,
		Plan:      b.planFor,
		Check:     b.check,
		Version:   func(ctx context.Context) (nodeapi.Version, error) { return b.versionOf(ctx), nil },
	}
}

// firstLook is how long a question right after the start may wait for the answer
// to be more than what is wished.
const firstLook = 2 * time.Second

func (b *berth) find(ctx context.Context, namespace, name string) (*agent.Snapshot, error) {
	b.agent.Steady(ctx, firstLook)
	s, ok := b.agent.Board.Find(namespace, name)
	if !ok {
		return nil, nodeapi.NotFound(name)
	}
	return s, nil
}

func (b *berth) pods(ctx context.Context) (*corev1.PodList, error) {
	b.agent.Steady(ctx, firstLook)
	list := &corev1.PodList{}
	for _, s := range b.agent.Board.All() {
		list.Items = append(list.Items, *s.Object())
	}
	return list, nil
}

func (b *berth) watchPods(ctx context.Context, send func(nodeapi.PodEvent) error) error {
	b.agent.Steady(ctx, firstLook)
	return b.agent.Board.Follow(ctx, func(n agent.News) error {
		switch {
		case n.Added != nil:
			return send(nodeapi.PodEvent{Type: nodeapi.Added, Pod: n.Added.Object()})
		case n.Modified != nil:
			return send(nodeapi.PodEvent{Type: nodeapi.Modified, Pod: n.Modified.Object()})
		case n.Gone != nil:
			return send(nodeapi.PodEvent{Type: nodeapi.Deleted, Pod: n.Gone.Object()})
		}
		return send(nodeapi.PodEvent{Type: nodeapi.Synced})
	})
}

func (b *berth) nodeSummary(context.Context) (nodeapi.NodeSummary, error) {
	out := nodeapi.NodeSummary{Name: b.config.NodeName}
	for _, snap := range b.agent.Snapshots() {
		for _, f := range snap.Bad {
			out.BadFiles = append(out.BadFiles, nodeapi.BadFile{Path: f.Path, Line: f.Line, Field: f.Field, Message: f.Message, Since: f.Since, LastGood: f.Kept})
		}
		for _, w := range snap.Warnings {
			out.Warnings = append(out.Warnings, warningOf(w))
		}
	}
	if cause, since := b.agent.Waiting(); cause != "" {
		message := fmt.Sprintf("%s (since %s); no pod is started before it has told what it has", cause, since.UTC().Format(time.RFC3339))
		out.Warnings = append(out.Warnings, nodeapi.Warning{Object: "container runtime", Message: message})
	}
	if bad, why := b.store.Degraded(); bad {
		out.Warnings = append(out.Warnings, nodeapi.Warning{Object: "local store", Message: "records of pods are in memory only: " + why})
	}
	return out, nil
}

func warningOf(w source.Warning) nodeapi.Warning {
	object := w.File
	if w.Pod.Name != "" {
		object = "pod/" + w.Pod.String()
	}
	return nodeapi.Warning{Object: object, Message: w.Message}
}

func (b *berth) describe(ctx context.Context, namespace, name string) (nodeapi.Description, error) {
	s, err := b.find(ctx, namespace, name)
	if err != nil {
		return nodeapi.Description{}, err
	}
	d := nodeapi.Description{Pod: s.Object(), Events: b.events.List(s.Pod.UID), Source: s.Pod.Annotations["kubernetes.io/config.source"]}
	for _, snap := range b.agent.Snapshots() {
		for _, w := range snap.Warnings {
			if w.Pod.Namespace == namespace && w.Pod.Name == name {
				d.Warnings = append(d.Warnings, warningOf(w))
			}
		}
	}
	return d, nil
}

func (b *berth) listEvents(_ context.Context, req nodeapi.EventsRequest) (*corev1.EventList, error) {
	list := &corev1.EventList{}
	for _, e := range b.events.All() {
		of := e.InvolvedObject
		if (req.Namespace == "" || of.Namespace == req.Namespace) && (req.Pod == "" || of.Name == req.Pod) {
			list.Items = append(list.Items, e)
		}
	}
	return list, nil
}

func (b *berth) logs(ctx context.Context, req nodeapi.LogRequest, stdout, stderr io.Writer) error {
	s, err := b.find(ctx, req.Namespace, req.Pod)
	if err != nil {
		return err
	}
	k, err := s.Instance(req.Container, req.Previous)
	if err != nil {
		return badRequest("%s", err)
	}
	o := crilog.Options{
		Path: k.LogPath, Follow: req.Follow, Tail: req.Tail, Since: req.SinceTime, Timestamps: req.Timestamps,
		Stdout: stdout, Stderr: stderr,
	}
	if req.Since > 0 {
		o.Since = time.Now().Add(-req.Since)
	}
	if req.LimitBytes != nil {
		o.LimitBytes = *req.LimitBytes
	}
	if req.Follow {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		o.Done = b.ended(ctx, s.Pod.UID, k.ID)
		return crilog.Read(ctx, o)
	}
	return crilog.Read(ctx, o)
}

// ended is closed when a container has ended, or nothing is known of it.
func (b *berth) ended(ctx context.Context, uid types.UID, id string) <-chan struct{} {
	done := make(chan struct{})
	changed, stop := b.agent.Board.Changes()
	go func() { // ends with ctx, which the caller cancels
		defer stop()
		defer close(done)
		for b.lives(uid, id) {
			select {
			case <-changed:
			case <-ctx.Done():
				return
			}
		}
	}()
	return done
}

func (b *berth) lives(uid types.UID, id string) bool {
	s, known := b.agent.Board.Get(uid)
	return known && slices.ContainsFunc(s.Seen.Containers, func(k plan.Container) bool { return k.ID == id && k.Live() })
}

func (b *berth) execURL(ctx context.Context, req nodeapi.ExecRequest) (string, error) {
	s, err := b.find(ctx, req.Namespace, req.Pod)
	if err != nil {
		return "", err
	}
	k, err := s.Instance(req.Container, false)
	if err != nil {
		return "", badRequest("%s", err)
	}
	if k.State != plan.Running {
		return "", badRequest("container %q is %s, not running", req.Container, k.State)
	}
	return b.runtime.client.ExecURL(ctx, k.ID, req.Command, cri.Streams{Stdin: req.Stdin, Stdout: true, Stderr: !req.TTY, TTY: req.TTY})
}

func (b *berth) why(ctx context.Context, namespace, name string) (nodeapi.Why, error) {
	s, err := b.find(ctx, namespace, name)
	if err != nil {
		return b.whyNoPod(name, err)
	}
	w := explain.Why(b.subject(s), time.Now())
	if cause, _ := b.agent.Waiting(); cause != "" {
		w.Next = nil // what is there is not known
	}
	return w, nil
}

// whyNoPod names the manifest file that keeps a pod from being here.
func (b *berth) whyNoPod(name string, err error) (nodeapi.Why, error) {
	for _, snap := range b.agent.Snapshots() {
		for _, f := range snap.Bad {
			if !f.Kept && strings.Contains(filepath.Base(f.Path), name) {
				return nodeapi.Why{}, badRequest("no pod %q: %s", name, f.String())
			}
		}
	}
	return nodeapi.Why{}, err
}

func (b *berth) subject(s *agent.Snapshot) explain.Subject {
	x := explain.Subject{
		Pod: s.Pod, Status: s.Status, End: s.End, Verdict: s.Verdict, Seen: s.Seen, Failed: s.Failed, Refs: s.Refs,
		Memory: s.Memory, Passes: s.Passes, At: s.At, Wake: s.Wake, Limits: b.agent.Limits,
	}
	for _, t := range s.Why {
		x.Why = append(x.Why, explain.Told{Reason: t.Reason, Since: t.Since})
	}
	for _, w := range s.Busy {
		x.Busy = append(x.Busy, explain.Busy{Action: w.Action, Since: w.Since, Detail: b.progress(w.Action)})
	}
	return x
}

// progress is what is known of a pull under way.
func (b *berth) progress(a plan.Action) string {
	p, ok := a.(plan.PullImage)
	if !ok {
		return ""
	}
	for _, x := range b.runtime.images.Pulling() {
		if !strings.HasSuffix(x.Image, p.Image) {
			continue
		}
		if x.Began.IsZero() {
			return fmt.Sprintf("%s, %d pulls before it", p.Image, x.Before)
		}
		return fmt.Sprintf("%s, for %d pods", p.Image, len(x.Pods))
	}
	return ""
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

// planFor says what a manifest would mean for this node.
func (b *berth) planFor(ctx context.Context, manifest []byte) (nodeapi.PlanResult, error) {
	now := time.Now()
	wishes, err := source.Judge(
		source.Input{Path: "manifest", Data: manifest, Modified: now, Now: now},
		source.Identity{NodeName: b.config.NodeName, SuffixNodeName: !b.config.Standalone()}, nil)
	if err != nil {
		return nodeapi.PlanResult{}, badRequest("%s", err)
	}
	var out nodeapi.PlanResult
	for _, w := range wishes.Warnings {
		out.Warnings = append(out.Warnings, warningOf(w))
	}
	for _, pod := range wishes.Pods {
		objects := b.agent.Objects(pod, wishes.Objects)
		s := explain.Subject{Pod: pod, Limits: b.agent.Limits, Refs: agent.Versions(objects)}
		s.Seen.Images = b.imagesOf(ctx, pod, objects)
		var here *corev1.Pod
		if was, found := b.agent.Board.Find(pod.Namespace, pod.Name); found {
			here = was.Pod
			if here.UID == pod.UID {
				images := s.Seen.Images // of the manifest, which may name others
				s.Seen, s.Status, s.Memory = was.Seen, was.Status, was.Memory
				s.Seen.Images = images
			}
		}
		change := explain.Change(here, pod)
		out.Pods = append(out.Pods, explain.Plan(s, change, b.refusal(ctx, pod, change), now))
	}
	return out, nil
}

func (b *berth) imagesOf(ctx context.Context, pod *corev1.Pod, objects plan.Objects) map[string]plan.Image {
	out := map[string]plan.Image{}
	for _, name := range explain.Images(pod) {
		if img, here, err := b.runtime.images.Present(ctx, pod, name, objects); err == nil && here {
			out[name] = img
		}
	}
	return out
}

// refusal is what stage admit would say to a new pod; empty: yes.
func (b *berth) refusal(ctx context.Context, pod *corev1.Pod, change nodeapi.Change) string {
	if change == nodeapi.Keep || change == nodeapi.Update {
		return ""
	}
	census, err := b.agent.Census(ctx)
	if err != nil {
		return ""
	}
	return census.Refusal(pod)
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

// health is what the health port answers from.
func (b *berth) health() nodeapi.Health {
	return nodeapi.Health{
		Live: []nodeapi.HealthCheck{{Name: "loops", Check: func(context.Context) error {
			if ok, why := b.loops.Healthy(); !ok {
				return fmt.Errorf("%s", why)
			}
			return nil
		}}},
		Ready: []nodeapi.HealthCheck{
			{Name: "runtime", Check: func(context.Context) error {
				if down := b.runtime.down.Load(); down != nil {
					return fmt.Errorf("%s", *down)
				}
				if st := b.runtime.status.Load(); st == nil || !st.Ready {
					return fmt.Errorf("the runtime is not ready")
				}
				return nil
			}},
			{Name: "adopted", Check: func(context.Context) error {
				select {
				case <-b.agent.Ready():
					return nil
				default:
					return fmt.Errorf("what the runtime has is not known yet")
				}
			}},
			{Name: "store", Mild: true, Check: func(context.Context) error {
				if bad, why := b.store.Degraded(); bad {
					return errors.New("records of pods are in memory only: " + why)
				}
				return nil
			}},
		},
		Metrics: b.metrics.Handler(),
	}
}
