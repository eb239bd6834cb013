package localworkloads

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"berth/agent/source"
	"berth/agent/status"
	"berth/agent/status/events"
	"berth/workloads"
)

// disk is a local store.
type disk struct {
	mu     sync.Mutex
	values map[string][]byte
}

func (d *disk) PutNodeValues(values map[string][]byte) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for k, v := range values {
		if v == nil {
			delete(d.values, k)
		} else {
			d.values[k] = v
		}
	}
}

func (d *disk) Flush(context.Context) error { return nil }

// with returns the values whose keys have a prefix.
func (d *disk) with(prefix string) map[string][]byte {
	d.mu.Lock()
	defer d.mu.Unlock()
	out := maps.Clone(d.values)
	maps.DeleteFunc(out, func(k string, _ []byte) bool { return !strings.HasPrefix(k, prefix) })
	return out
}

// fakeFiles is a source of files that sends what the test writes.
type fakeFiles chan source.Snapshot

func (f fakeFiles) Run(ctx context.Context, emit func(source.Snapshot)) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case snap := <-f:
			emit(snap)
		}
	}
}

// node is a Source with its surroundings, of which a restart keeps the disk.
type node struct {
	*Source
	t      *testing.T
	disk   *disk
	events *events.Recorder
	log    *bytes.Buffer
	files  fakeFiles
	sent   chan source.Snapshot
}

// startNode starts a Source on a disk. It ends before the test does.
func startNode(t *testing.T, d *disk, suffix string) *node {
	t.Helper()
	n := &node{
		t: t, disk: d, events: events.NewRecorder(events.RecorderOptions{}), log: &bytes.Buffer{},
		files: make(fakeFiles), sent: make(chan source.Snapshot, 100),
	}
	if d.values == nil {
		d.values = map[string][]byte{}
	}
	ref := func(r corev1.ObjectReference) events.PodRef {
		return events.PodRef{Namespace: r.Namespace, Name: r.Name, UID: r.UID, Kind: r.Kind, APIVersion: r.APIVersion}
	}
	log := slog.New(slog.NewTextHandler(n.log, nil))
	n.Source = NewSource(Options{
		Reconciler: Config{
			Node: func() *corev1.Node { return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}} },
			Record: func(r corev1.ObjectReference, e workloads.Event) {
				n.events.Record(ref(r), events.Event{Type: e.Type, Reason: e.Reason, Message: e.Message})
			},
			Created: n.events.PodCreated, Deleted: n.events.PodDeleted, Log: log,
		},
		Files: n.files, Store: d, Stored: d.with(Prefix), StoredEvents: d.with(EventsPrefix), NodeSuffix: suffix,
		Log: log, SaveEvents: n.events.Save,
		RestoreEvents: func(r corev1.ObjectReference, saved []byte) error {
			return n.events.Restore(ref(r), saved)
		},
		Watch: func(ctx context.Context, _ func(status.Event) error) error {
			<-ctx.Done()
			return nil
		},
	})
	return n
}

// run runs the Source with a file until what it sends meets a condition.
func (n *node) run(file string, done func([]*corev1.Pod) bool) {
	n.t.Helper()
	ctx, stop := context.WithCancel(n.t.Context())
	ended := make(chan error, 1)
	go func() { ended <- n.Run(ctx, func(s source.Snapshot) { n.sent <- s }) }()
	snap := source.Snapshot{Ready: true}
	if file != "" {
		snap.Workloads = workloadsOf(n.t, map[string]string{"web.yaml": file})
	}
	n.files <- snap
	for {
		s := <-n.sent
		running := map[types.UID]bool{}
		for _, pod := range s.Pods {
			if running[pod.UID] = true; pod.DeletionTimestamp != nil {
				n.PodDeleted(pod.UID)
				continue
			}
			observed := pod.DeepCopy()
			observed.Status.Phase = corev1.PodRunning
			observed.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
			_ = n.observe(status.Event{Modified: &status.Snapshot{Pod: pod, Status: observed.Status, At: time.Now()}})
		}
		if done(s.Pods) {
			break
		}
	}
	stop()
	if err := <-ended; err != nil {
		n.t.Fatal(err)
	}
}

// reasons returns the events of the workload and its objects as "kind reason".
func (n *node) reasons() string {
	var out []string
	for _, e := range n.events.All() {
		out = append(out, e.InvolvedObject.Kind+" "+e.Reason)
	}
	return strings.Join(out, ", ")
}

// TestEventsOfWorkloadsSurviveRestart checks that the local store has the events of existing objects, and of no others.
func TestEventsOfWorkloadsSurviveRestart(t *testing.T) {
	t.Parallel()
	d := &disk{}
	manifest := fmt.Sprintf(deploymentManifest, 2, 1)
	two := func(pods []*corev1.Pod) bool { return len(pods) == 2 }
	n := startNode(t, d, "")
	n.run(manifest, two)
	before := n.reasons()
	want := "Deployment ScalingReplicaSet, ReplicaSet SuccessfulCreate, ReplicaSet SuccessfulCreate"
	if before != want {
		t.Fatalf("events %q, want %q", before, want)
	}
	n = startNode(t, d, "")
	if after := n.reasons(); after != before {
		t.Errorf("events after a restart %q, before %q", after, before)
	}
	n.run("", func(pods []*corev1.Pod) bool { return len(pods) == 0 })
	if left := d.with(EventsPrefix); len(left) > 0 {
		t.Errorf("events of deleted objects are stored: %v", left)
	}

	d.PutNodeValues(map[string][]byte{EventsPrefix + "gone": []byte("{}")})
	startNode(t, d, "")
	if left := d.with(EventsPrefix); len(left) > 0 {
		t.Errorf("events of an unknown object are stored: %v", left)
	}
}

// TestEditIsDurable checks that a command has been persisted when it returns, and that none is accepted while the node
// shuts down.
func TestEditIsDurable(t *testing.T) {
	t.Parallel()
	d := &disk{}
	n := startNode(t, d, "")
	key := source.WorkloadKey{
		Kind: "Deployment", NamespacedName: types.NamespacedName{Namespace: "default", Name: "web"},
	}
	scale := func(e *Reconciler, now time.Time) error { return e.Scale(key, 3, now) }
	var killed map[string][]byte
	n.run(fmt.Sprintf(deploymentManifest, 1, 1), func(pods []*corev1.Pod) bool {
		if err := n.Edit(t.Context(), scale); err != nil {
			t.Error(err)
		}
		killed = d.with("")
		return true
	})
	n = startNode(t, &disk{values: killed}, "")
	views, _ := n.Views()
	i := slices.IndexFunc(views, func(v View) bool { return v.Overrides["scale"] == "3 replicas" })
	if i < 0 {
		t.Errorf("the command is lost after a kill: %v", slices.Sorted(maps.Keys(killed)))
	}
	n.run(fmt.Sprintf(deploymentManifest, 1, 1), func(pods []*corev1.Pod) bool { return len(pods) == 3 })
	n.opt.Suspended = func() bool { return true }
	if err := n.Edit(t.Context(), scale); !apierrors.IsServiceUnavailable(err) {
		t.Errorf("command during the shutdown: %v", err)
	}
}

// TestJoinedNodeReportsWorkloads checks that one event says that an API server does not know the workload of a file,
// and that pods keep their UIDs and get the names of mirror pods.
func TestJoinedNodeReportsWorkloads(t *testing.T) {
	t.Parallel()
	d := &disk{}
	manifest := fmt.Sprintf(deploymentManifest, 1, 1)
	var uid types.UID
	one := func(pods []*corev1.Pod) bool {
		if len(pods) == 1 {
			uid = pods[0].UID
		}
		return len(pods) == 1
	}
	n := startNode(t, d, "")
	n.run(manifest, one)
	if strings.Contains(n.reasons(), NotOnServer) {
		t.Errorf("events without a server: %s", n.reasons())
	}
	first := uid
	for range 2 {
		n = startNode(t, d, "n1")
		n.run(manifest, func(pods []*corev1.Pod) bool {
			return one(pods) && strings.HasSuffix(pods[0].Name, "-n1") && len(pods[0].OwnerReferences) == 0
		})
	}
	if uid != first {
		t.Errorf("the pod %s became %s", first, uid)
	}
	if got := strings.Count(n.reasons(), "Deployment "+NotOnServer); got != 1 {
		t.Errorf("%d events: %s", got, n.reasons())
	}
	for _, e := range n.events.All() {
		if e.Reason == NotOnServer && (e.Count != 1 || e.Type != corev1.EventTypeWarning ||
			!strings.Contains(e.Message, "web.yaml")) {
			t.Errorf("unexpected event %+v", e)
		}
	}
	edited := workloadsOf(t, map[string]string{"web.yaml": fmt.Sprintf(deploymentManifest, 1, 2)})
	steps := n.Preview(edited, time.Now())[0].Steps
	if len(steps) != 2 || !strings.HasSuffix(steps[0].Pod.Name, "-n1") ||
		steps[1].After != "pod "+steps[0].Pod.Name+" is ready" || steps[1].Pod.UID != uid {
		t.Errorf("unexpected preview of %d steps, the last after %q", len(steps), steps[len(steps)-1].After)
	}
	if strings.Contains(n.log.String(), "API server does not know") {
		t.Errorf("reported again after a restart: %s", n.log)
	}

	n = startNode(t, d, "")
	n.run(manifest, one)
	if log := n.log.String(); !strings.Contains(log, "has no API server any more") {
		t.Errorf("log of a node that left its server: %s", log)
	}
	n = startNode(t, d, "n1")
	n.run(fmt.Sprintf(deploymentManifest, 1, 2), func(pods []*corev1.Pod) bool { return len(pods) > 0 })
	if log := n.log.String(); !strings.Contains(log, "API server does not know the workload of a file") {
		t.Errorf("log of a node that joined again: %s", log)
	}
}

// TestSuspendedSourceSleeps checks that a Source does not wake up again and again for decisions that have become due
// while the node shuts down.
func TestSuspendedSourceSleeps(t *testing.T) {
	t.Parallel()
	n := startNode(t, &disk{}, "")
	n.watch = func() {}
	n.setFiles(source.Snapshot{
		Ready: true, Workloads: workloadsOf(t, map[string]string{"web": fmt.Sprintf(deploymentManifest, 1, 1)}),
	})
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	n.sync(t.Context(), func(source.Snapshot) {}, timer)
	n.opt.Suspended = func() bool { return true }
	n.reconciler.wakes[key{"Deployment", "default", "web"}] = time.Now().Add(-time.Second)
	n.sync(t.Context(), func(source.Snapshot) {}, timer)
	select {
	case <-timer.C:
		t.Error("the Source wakes up although no decision is possible")
	case <-time.After(100 * time.Millisecond):
	}
}
