package registration

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"berth/internal/apiclient"
)

// world is a presence that runs against a server, with a clock to set and facts
// to change.
type world struct {
	*server
	p     *Registrar
	ended chan error

	mu     sync.Mutex
	ahead  time.Duration // the clock is before the real one by it
	facts  Facts
	looks  int
	events []string
	beats  []error
	alone  bool
	heard  corev1.Node // last state on the server
}

func run(t *testing.T, s *server, change ...func(*Options)) *world {
	t.Helper()
	w := &world{
		server: s,
		ended:  make(chan error, 1),
		facts:  Facts{Labels: map[string]string{corev1.LabelHostname: "n", "mine": "yes"}},
	}
	w.facts.System.MachineID = "this machine"
	o := Options{
		Client: s.client(), HeartbeatClient: s.client(), Name: "n", Installation: "here", RegisterNode: true,
		Taints:                []corev1.Taint{{Key: "new", Effect: corev1.TaintEffectNoSchedule}},
		StatusUpdateFrequency: 5 * time.Millisecond, LeaseDuration: time.Second,
		Facts:          func(context.Context) Facts { w.mu.Lock(); defer w.mu.Unlock(); w.looks++; return w.facts },
		Now:            func() time.Time { w.mu.Lock(); defer w.mu.Unlock(); return time.Now().Add(w.ahead) },
		OnLeaseRenewed: func(_ time.Duration, err error) { w.mu.Lock(); defer w.mu.Unlock(); w.beats = append(w.beats, err) },
		OnNameVerified: func() { w.mu.Lock(); defer w.mu.Unlock(); w.alone = true },
		OnNode:         func(n *corev1.Node) { w.mu.Lock(); defer w.mu.Unlock(); w.heard = *n },
		RecordEvent:    func(_, reason, _ string) { w.mu.Lock(); defer w.mu.Unlock(); w.events = append(w.events, reason) },
	}
	for _, f := range change {
		f(&o)
	}
	w.p = New(o)
	ctx, cancel := context.WithCancel(t.Context())
	over := make(chan struct{})
	go func() { defer close(over); w.ended <- w.p.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-over })
	return w
}

// change changes the facts, or the clock.
func (w *world) change(f func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	f()
}

func (w *world) told() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.events)
}

// until waits for a condition, which something is bound to bring about.
func until(t *testing.T, what string, f func() bool) {
	t.Helper()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for late := time.After(30 * time.Second); !f(); {
		select {
		case <-tick.C:
		case <-late:
			t.Fatalf("there is no %s", what)
		}
	}
}

func isReady(n *corev1.Node) bool {
	return n != nil && slices.ContainsFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
	})
}

// passes waits until the Registrar has read its facts a few more times.
func (w *world) passes(t *testing.T) {
	t.Helper()
	looks := func() int { w.mu.Lock(); defer w.mu.Unlock(); return w.looks }
	first := looks()
	until(t, "look at the facts", func() bool { return looks() > first+5 })
}

// reports advances the clock until the unchanged status is reported.
func (w *world) reports(t *testing.T) {
	t.Helper()
	late := time.Now().Add(5 * time.Minute)
	until(t, "report", func() bool {
		w.change(func() { w.ahead += 6 * time.Minute })
		return w.get().Status.Conditions[3].LastHeartbeatTime.After(late)
	})
}

func TestRegisterCreatesNode(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	w := run(t, s)
	until(t, "ready node", func() bool { return isReady(s.get()) })
	n := s.get()
	if n.Labels["mine"] != "yes" || n.Annotations[InstallationAnnotation] != "here" || len(n.Spec.Taints) != 1 {
		t.Errorf("it is %+v", n)
	}
	until(t, "lease", func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.lease != nil
	})
	until(t, "second status", func() bool { return s.count("PATCH n") > 1 })
	if w.p.UID() != n.UID {
		t.Errorf("its UID is %s, not %s", w.p.UID(), n.UID)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if by := s.lease.OwnerReferences; len(by) != 1 || by[0].UID != n.UID {
		t.Errorf("the lease does not go with the Node: it is owned by %v", by)
	}
}

func TestRegisterAmendsExistingNode(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	old := &corev1.Node{}
	old.Name, old.Labels, old.Annotations = "n", map[string]string{
		"theirs": "kept",
		"mine":   "no",
	}, map[string]string{
		InstallationAnnotation: "here",
	}
	old.Status.Conditions = []corev1.NodeCondition{{Type: "Theirs", Status: corev1.ConditionTrue}}
	s.set(old)
	run(t, s)
	until(t, "ready node", func() bool { return isReady(s.get()) })
	n := s.get()
	if n.Labels["mine"] != "yes" || n.Labels["theirs"] != "kept" {
		t.Errorf("its labels are %v", n.Labels)
	}
	if len(n.Spec.Taints) != 0 {
		t.Errorf("the removed taint was restored: %v", n.Spec.Taints)
	}
	if len(n.Status.Conditions) != 5 {
		t.Errorf("the conditions of others do not stay: %v", n.Status.Conditions)
	}
}

// If the server rejects both the creation and the change of the Node, its status is still reported.
// The rejected request is repeated when it is permitted.
func TestRegisterUsesExistingNodeAfterRejectedRequests(t *testing.T) {
	t.Parallel()
	for name, flaw := range map[string]metav1.StatusReason{"store full": noRoom, "not allowed": metav1.StatusReasonForbidden} {
		for what, refuses := range map[string]map[string]metav1.StatusReason{
			"its creation":                   {"POST nodes": flaw},
			"changes of it":                  {"PATCH n": flaw},
			"its creation and changes of it": {"POST nodes": flaw, "PATCH n": flaw},
		} {
			t.Run(name+": "+what, func(t *testing.T) {
				t.Parallel()
				s := newServer(t)
				old := &corev1.Node{}
				old.Name, old.UID, old.Labels = "n", "u", map[string]string{"theirs": "kept", "mine": "no"}
				s.set(old)
				s.mu.Lock()
				s.refuses = refuses
				s.mu.Unlock()
				w := run(t, s)
				until(t, "Node", func() bool { w.mu.Lock(); defer w.mu.Unlock(); return w.heard.UID == "u" })
				until(t, "ready node", func() bool { return isReady(s.get()) })
				until(t, "watch", func() bool { return s.count("WATCH") > 0 })
				w.p.Trigger()
				until(t, "end of telling", w.p.StatusSynced)
				s.mu.Lock()
				s.refuses = nil
				s.mu.Unlock()
				until(t, "amended Node", func() bool {
					n := s.get()
					return n.Labels["mine"] == "yes" && n.Annotations[InstallationAnnotation] == "here"
				})
				if n := s.get(); n.Labels["theirs"] != "kept" || n.UID != "u" {
					t.Errorf("it is %+v", n)
				}
			})
		}
	}
}

// The error is the rejection, not that the Node is missing.
func TestRegisterFailsWithoutExistingNode(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	s.refuses = map[string]metav1.StatusReason{"POST nodes": noRoom}
	p := New(
		Options{Client: s.client(), Name: "n", RegisterNode: true, Facts: func(context.Context) Facts { return Facts{} }},
	)
	if err := p.syncNode(t.Context()); apierrors.ReasonForError(err) != noRoom || p.registered {
		t.Errorf("registered: %v, %v", p.registered, err)
	}
}

func TestRegisterRecreatesDeletedNode(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	w := run(t, s)
	until(t, "ready node", func() bool { return isReady(s.get()) })
	first := s.get().UID
	until(t, "watch", func() bool { return s.count("WATCH") > 0 }) // the watch does not include earlier changes
	s.set(nil)
	until(t, "node again", func() bool { n := s.get(); return isReady(n) && n.UID != first })
	until(t, "knowledge of it", func() bool { return w.p.UID() == s.get().UID })
}

// The state that other clients have set is kept, as far as the node may set it.
func TestRecreatedNodeKeepsState(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	w := run(t, s)
	until(t, "ready node", func() bool { return isReady(s.get()) })
	until(t, "watch", func() bool { return s.count("WATCH") > 0 })
	n := s.get()
	n.Spec.Unschedulable = true
	n.Spec.Taints = []corev1.Taint{ // without the taint of the registration
		{
			Key:    "theirs",
			Effect: corev1.TaintEffectNoExecute,
		},
		{Key: corev1.TaintNodeNotReady, Effect: corev1.TaintEffectNoSchedule},
	}
	n.Spec.PodCIDRs = []string{"10.7.0.0/24"}
	n.Labels["mine"], n.Labels["theirs"] = "no", "kept"
	for _, label := range []string{
		"disk.example.com/kind", "node.kubernetes.io/kept", corev1.LabelTopologyZone,
		"node-role.kubernetes.io/worker", "node-restriction.kubernetes.io/theirs", "x.node-restriction.kubernetes.io/theirs", "x.k8s.io/y",
	} {
		n.Labels[label] = "x"
	}
	s.set(n)
	until(t, "knowledge of it", func() bool { w.mu.Lock(); defer w.mu.Unlock(); return w.heard.Spec.Unschedulable })
	first := s.get().UID
	s.set(nil)
	until(t, "node again", func() bool { n := s.get(); return isReady(n) && n.UID != first })
	got := s.get()
	if !got.Spec.Unschedulable {
		t.Error("it is not cordoned any more")
	}
	if len(got.Spec.Taints) != 1 || got.Spec.Taints[0].Key != "theirs" {
		t.Errorf("its taints are %v", got.Spec.Taints)
	}
	if len(got.Spec.PodCIDRs) > 0 {
		t.Errorf("it says its pod ranges: %v", got.Spec.PodCIDRs)
	}
	want := map[string]string{
		corev1.LabelHostname:      "n",
		"mine":                    "yes",
		"theirs":                  "kept",
		"disk.example.com/kind":   "x",
		"node.kubernetes.io/kept": "x",
		corev1.LabelTopologyZone:  "x",
	}
	if !maps.Equal(got.Labels, want) {
		t.Errorf("its labels are %v", got.Labels)
	}
}

// TestRecreatedNodeDropsForbiddenState comes back all the same.
func TestRecreatedNodeDropsForbiddenState(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	s.mu.Lock()
	s.strict = "theirs"
	s.mu.Unlock()
	w := run(t, s)
	until(t, "ready node", func() bool { return isReady(s.get()) })
	until(t, "watch", func() bool { return s.count("WATCH") > 0 })
	n := s.get()
	n.Labels["theirs"] = "set"
	s.set(n)
	until(t, "knowledge of it", func() bool { w.mu.Lock(); defer w.mu.Unlock(); return w.heard.Labels["theirs"] != "" })
	s.set(nil)
	until(t, "node again", func() bool { got := s.get(); return isReady(got) && got.UID != n.UID })
	if got := s.get().Labels; got["theirs"] != "" || got["mine"] != "yes" {
		t.Errorf("its labels are %v", got)
	}
}

// The status is reported when it has changed, when another client has overwritten it, and
// periodically.
func TestStatusIsReported(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	w := run(t, s)
	until(t, "ready node", func() bool { return isReady(s.get()) })
	// Wait for the first list. A late one resets the Node, and the status is reported again,
	// because the server's store may have been restored.
	until(t, "watch", func() bool { return s.count("WATCH") > 0 })
	quiet := func() {
		t.Helper()
		w.passes(t)
		before := s.count("PATCH status")
		w.passes(t)
		if n := s.count("PATCH status"); n != before {
			t.Errorf("the unchanged status was reported %d times", n-before)
		}
	}
	quiet()
	since := s.get().Status.Conditions[3].LastTransitionTime
	w.reports(t)
	if c := s.get().Status.Conditions[3]; !c.LastTransitionTime.Equal(&since) {
		t.Errorf("a report without news: %+v", c)
	}
	w.change(func() { w.facts.DiskPressure = true })
	until(t, "pressure", func() bool { return s.get().Status.Conditions[1].Status == corev1.ConditionTrue })
	quiet()
	lost := s.get()
	for i := range lost.Status.Conditions {
		lost.Status.Conditions[i].Status, lost.Status.Conditions[i].Reason = corev1.ConditionUnknown, "NodeStatusUnknown"
	}
	s.set(lost)
	until(t, "word that it lives", func() bool { return isReady(s.get()) })
	quiet()
}

// TestStatusSyncedAfterTrigger and not before the server has answered.
func TestStatusSyncedAfterTrigger(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	w := run(t, s, func(o *Options) { o.StatusUpdateFrequency = time.Hour })
	until(t, "ready node", func() bool { return isReady(s.get()) })
	if !w.p.StatusSynced() {
		t.Error("not synced without a trigger")
	}
	hang, told := make(chan struct{}), s.count("PATCH status")
	s.mu.Lock()
	s.hang = hang
	s.mu.Unlock()
	w.change(func() { w.facts.NotReady = "it goes down" })
	w.p.Trigger()
	until(t, "status on its way", func() bool { return s.count("PATCH status") > told })
	if w.p.StatusSynced() {
		t.Error("synced before the server responded")
	}
	s.mu.Lock()
	s.hang = nil
	s.mu.Unlock()
	close(hang)
	if until(t, "answer", w.p.StatusSynced); isReady(s.get()) {
		t.Error("synced although the server rejected it")
	}
}

func TestConditionEventsAreRecordedOnce(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	w := run(t, s)
	until(t, "ready node", func() bool { return isReady(s.get()) })
	w.passes(t)
	w.reports(t)
	w.passes(t)
	want := []string{"NodeHasSufficientMemory", "NodeHasNoDiskPressure", "NodeHasSufficientPID", "NodeReady"}
	if got := w.told(); !slices.Equal(got, want) {
		t.Errorf("the events are %v", got)
	}
	w.change(
		func() { w.facts.NotReady, w.facts.Network = "no network", &NetworkCondition{Reason: "BerthHasRoutes"} },
	) // the latter is no event
	until(t, "node that is not ready", func() bool { return !isReady(s.get()) })
	w.change(func() { w.facts.NotReady = "" })
	until(t, "node that is ready again", func() bool { return isReady(s.get()) })
	w.passes(t)
	if got := w.told(); !slices.Equal(got, append(want, "NodeNotReady", "NodeReady")) {
		t.Errorf("the events are %v", got)
	}
}

// TestLeaseUsesSeparateConnection: that the server does not answer about the Node
// does not keep the lease from being renewed.
func TestLeaseUsesSeparateConnection(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	w := run(t, s)
	until(t, "ready node", func() bool { return isReady(s.get()) })
	w.passes(t)
	hang := make(chan struct{})
	defer close(hang)
	s.mu.Lock()
	s.hang = hang
	s.mu.Unlock()
	before, told := s.count("PATCH n"), s.count("PATCH status")
	w.change(func() { w.facts.MemoryPressure = true })
	until(t, "status on its way", func() bool { return s.count("PATCH status") > told })
	until(t, "renewals", func() bool { return s.count("PATCH n") >= before+3 })
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, err := range w.beats {
		if err != nil && !errors.Is(err, context.DeadlineExceeded) { // which a busy machine may make
			t.Error(err)
		}
	}
}

// The connection drops all data silently, but a new connection would work.
func TestUnresponsiveConnectionIsClosed(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	way := newWay(t, s)
	w := run(t, s, func(o *Options) { o.Client, o.HeartbeatClient = way.client(), way.client() })
	until(t, "ready node", func() bool { return isReady(s.get()) })
	until(t, "watch", func() bool { return s.count("WATCH") > 0 })
	renewed := func() (n int) {
		w.mu.Lock()
		defer w.mu.Unlock()
		for _, err := range w.beats {
			if err == nil {
				n++
			}
		}
		return n
	}
	until(t, "renewal", func() bool { return renewed() > 0 })
	way.swallow()
	before := renewed()
	w.change(func() { w.facts.MemoryPressure = true })
	until(t, "renewal over another connection", func() bool { return renewed() > before+1 })
	until(
		t,
		"status over another connection",
		func() bool { return s.get().Status.Conditions[0].Status == corev1.ConditionTrue },
	)
}

// TestRespondingServerKeepsConnections, whatever it answers.
func TestRespondingServerKeepsConnections(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	way := newWay(t, s)
	p := New(Options{Client: way.client(), HeartbeatClient: way.client(), Name: "n"})
	refused := apierrors.NewServiceUnavailable("not now")
	answered := func() {
		t.Helper()
		for _, c := range []*apiclient.Client{p.opt.Client, p.opt.HeartbeatClient} {
			until(
				t,
				"answer",
				func() bool { return apierrors.IsNotFound(c.Get(t.Context(), apiclient.Nodes, "", "n", &corev1.Node{})) },
			)
		}
	}
	for _, r := range []struct {
		failed int
		err    error
		left   int
	}{{1, io.EOF, 2}, {2, refused, 2}, {3, io.EOF, 2}, {4, io.EOF, 1}, {6, refused, 2}, {2, io.EOF, 0}} {
		answered()
		was := way.made()
		p.reconnect(r.failed, r.err)
		answered()
		if anew := way.made() - was; anew != 2-r.left {
			t.Errorf("after %d failures, the last %v: %d new connections", r.failed, r.err, anew)
		}
	}
}

func theirs() *corev1.Node {
	n := &corev1.Node{}
	n.Name, n.Annotations = "n", map[string]string{InstallationAnnotation: "there"}
	n.Status.NodeInfo.MachineID = "that machine"
	n.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "192.0.2.7"}}
	return n
}

func TestNameOfLiveMachineIsRejected(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	s.set(theirs())
	s.renewed(time.Now())
	w := run(t, s)
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			s.renewed(time.Now())
		case err := <-w.ended:
			for _, want := range []string{"another machine", "that machine", "192.0.2.7", "--hostname-override", "stop berth on that machine"} {
				if !strings.Contains(fmt.Sprint(err), want) {
					t.Errorf("%v does not say %q", err, want)
				}
			}
			if by := s.get().Annotations[InstallationAnnotation]; by != "there" || s.count("PATCH status") > 0 {
				t.Errorf("the Node was changed: it belongs to %q", by)
			}
			w.change(func() {
				if w.alone {
					t.Error("the node name counts as verified")
				}
			})
			return
		}
	}
}

func TestNameOfDeadMachineIsAccepted(t *testing.T) {
	t.Parallel()
	for name, ago := range map[string]time.Duration{"long dead": time.Hour, "just died": 0} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newServer(t)
			s.set(theirs())
			s.renewed(time.Now().Add(-ago))
			w := run(t, s)
			until(
				t,
				"ready node",
				func() bool { n := s.get(); return isReady(n) && n.Annotations[InstallationAnnotation] == "here" },
			)
			w.change(func() {
				if !w.alone {
					t.Error("OnNameVerified was not called")
				}
			})
		})
	}
}

// Machines without the annotation are distinguished by their machine ID.
func TestSameInstallation(t *testing.T) {
	t.Parallel()
	p := New(Options{Installation: "here", Facts: func(context.Context) Facts {
		return Facts{System: corev1.NodeSystemInfo{MachineID: "this machine"}}
	}})
	node := func(by, machine string) *corev1.Node {
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{InstallationAnnotation: by}}}
		n.Status.NodeInfo.MachineID = machine
		return n
	}
	for _, r := range []struct {
		by, machine string
		mine        bool
	}{{"here", "that machine", true}, {"there", "this machine", false}, {"", "this machine", true}, {"", "that machine", false}, {"", "", true}} {
		if got := p.isOwn(t.Context(), node(r.by, r.machine)); got != r.mine {
			t.Errorf("made by %q on %q: %v", r.by, r.machine, got)
		}
	}
}
