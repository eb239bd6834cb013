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

// registrarTest is a Registrar that runs against a fake server, with a clock and facts that a test
// controls.
type registrarTest struct {
	*server
	p     *Registrar
	ended chan error

	mu           sync.Mutex
	ahead        time.Duration // offset of the clock from the real time
	facts        Facts
	factsReads   int
	events       []string
	renewals     []error
	nameVerified bool
	lastNode     corev1.Node // last state on the server
}

func run(t *testing.T, s *server, change ...func(*Options)) *registrarTest {
	t.Helper()
	w := &registrarTest{
		server: s,
		ended:  make(chan error, 1),
		facts: Facts{Labels: map[string]string{
			corev1.LabelHostname: "n", "mine": "yes", "unsupported.berth.dev/present": "true",
		}},
	}
	w.facts.System.MachineID = "this machine"
	o := Options{
		Client: s.client(), HeartbeatClient: s.client(), Name: "n", Installation: "here", RegisterNode: true,
		Taints:                []corev1.Taint{{Key: "new", Effect: corev1.TaintEffectNoSchedule}},
		StatusUpdateFrequency: 5 * time.Millisecond, LeaseDuration: time.Second,
		Facts: func(context.Context) Facts { w.mu.Lock(); defer w.mu.Unlock(); w.factsReads++; return w.facts },
		Now:   func() time.Time { w.mu.Lock(); defer w.mu.Unlock(); return time.Now().Add(w.ahead) },
		OnLeaseRenewed: func(_ time.Duration, err error) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.renewals = append(w.renewals, err)
		},
		OnNameVerified: func() { w.mu.Lock(); defer w.mu.Unlock(); w.nameVerified = true },
		OnNode:         func(n *corev1.Node) { w.mu.Lock(); defer w.mu.Unlock(); w.lastNode = *n },
		RecordEvent: func(_, reason, _ string) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.events = append(w.events, reason)
		},
	}
	for _, f := range change {
		f(&o)
	}
	w.p = New(o)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); w.ended <- w.p.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-done })
	return w
}

// change runs f, which changes the facts or the clock, with the lock held.
func (w *registrarTest) change(f func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	f()
}

func (w *registrarTest) recordedEvents() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.events)
}

// until waits for a condition and fails after a timeout.
func until(t *testing.T, what string, f func() bool) {
	t.Helper()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for timeout := time.After(2 * time.Minute); !f(); {
		select {
		case <-tick.C:
		case <-timeout:
			t.Fatalf("timeout waiting for: %s", what)
		}
	}
}

func isReady(n *corev1.Node) bool {
	return n != nil && slices.ContainsFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
	})
}

// waitForSyncs waits until the Registrar has read its facts several times.
func (w *registrarTest) waitForSyncs(t *testing.T) {
	t.Helper()
	reads := func() int { w.mu.Lock(); defer w.mu.Unlock(); return w.factsReads }
	first := reads()
	until(t, "facts read", func() bool { return reads() > first+5 })
}

// waitForReport advances the clock until the unchanged status is reported.
func (w *registrarTest) waitForReport(t *testing.T) {
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
	if n.Labels["mine"] != "yes" || n.Annotations[InstallationAnnotation] != "here" ||
		n.Annotations[attachAnnotation] != "true" || len(n.Spec.Taints) != 1 {
		t.Errorf("got Node %+v", n)
	}
	until(t, "lease", func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.lease != nil
	})
	until(t, "second status", func() bool { return s.count("PATCH n") > 1 })
	if w.p.UID() != n.UID {
		t.Errorf("got UID %s, want %s", w.p.UID(), n.UID)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if by := s.lease.OwnerReferences; len(by) != 1 || by[0].UID != n.UID {
		t.Errorf("got lease owners %v, want the Node", by)
	}
}

func TestRegisterAmendsExistingNode(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	node := &corev1.Node{}
	node.Name, node.Labels, node.Annotations = "n", map[string]string{
		"theirs":                        "kept",
		"mine":                          "no",
		"unsupported.berth.dev/old":     "true", // of a previous version that lacked the feature
		"unsupported.berth.dev/present": "false",
	}, map[string]string{
		InstallationAnnotation: "here",
	}
	node.Status.Conditions = []corev1.NodeCondition{{Type: "Theirs", Status: corev1.ConditionTrue}}
	s.set(node)
	run(t, s)
	until(t, "ready node", func() bool { return isReady(s.get()) })
	n := s.get()
	if n.Labels["mine"] != "yes" || n.Labels["theirs"] != "kept" {
		t.Errorf("got labels %v", n.Labels)
	}
	_, old := n.Labels["unsupported.berth.dev/old"]
	if old || n.Labels["unsupported.berth.dev/present"] != "true" {
		t.Errorf("labels of unsupported features: got %v, want only present: true", n.Labels)
	}
	if len(n.Spec.Taints) != 0 {
		t.Errorf("the removed taint was restored: %v", n.Spec.Taints)
	}
	if len(n.Status.Conditions) != 5 {
		t.Errorf("conditions of other components were removed: %v", n.Status.Conditions)
	}
}

// If the server rejects both the creation and the change of the Node, its status is still reported.
// The rejected request is repeated when it is permitted.
func TestRegisterUsesExistingNodeAfterRejectedRequests(t *testing.T) {
	t.Parallel()
	for name, reason := range map[string]metav1.StatusReason{"store full": storageFull,
		"not allowed": metav1.StatusReasonForbidden} {
		for what, rejections := range map[string]map[string]metav1.StatusReason{
			"creation rejected":             {"POST nodes": reason},
			"changes rejected":              {"PATCH n": reason},
			"creation and changes rejected": {"POST nodes": reason, "PATCH n": reason},
		} {
			t.Run(name+": "+what, func(t *testing.T) {
				t.Parallel()
				s := newServer(t)
				old := &corev1.Node{}
				old.Name, old.UID, old.Labels = "n", "u", map[string]string{"theirs": "kept", "mine": "no"}
				s.set(old)
				s.mu.Lock()
				s.rejections = rejections
				s.mu.Unlock()
				w := run(t, s)
				until(t, "Node", func() bool { w.mu.Lock(); defer w.mu.Unlock(); return w.lastNode.UID == "u" })
				until(t, "ready node", func() bool { return isReady(s.get()) })
				until(t, "watch", func() bool { return s.count("WATCH") > 0 })
				w.p.Trigger()
				until(t, "synced status", w.p.StatusSynced)
				s.mu.Lock()
				s.rejections = nil
				s.mu.Unlock()
				until(t, "amended Node", func() bool {
					n := s.get()
					return n.Labels["mine"] == "yes" && n.Annotations[InstallationAnnotation] == "here"
				})
				if n := s.get(); n.Labels["theirs"] != "kept" || n.UID != "u" {
					t.Errorf("got Node %+v", n)
				}
			})
		}
	}
}

// The error is the rejection, not that the Node is missing.
func TestRegisterFailsWithoutExistingNode(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	s.rejections = map[string]metav1.StatusReason{"POST nodes": storageFull}
	p := New(
		Options{Client: s.client(), Name: "n", RegisterNode: true, Facts: func(context.Context) Facts {
			return Facts{}
		}},
	)
	if err := p.syncNode(t.Context()); apierrors.ReasonForError(err) != storageFull || p.registered {
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
	until(t, "recreated node", func() bool { n := s.get(); return isReady(n) && n.UID != first })
	until(t, "update of the Registrar", func() bool { return w.p.UID() == s.get().UID })
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
		"node-role.kubernetes.io/worker", "node-restriction.kubernetes.io/theirs",
		"x.node-restriction.kubernetes.io/theirs", "x.k8s.io/y",
	} {
		n.Labels[label] = "x"
	}
	s.set(n)
	until(t, "update of the Registrar", func() bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		return w.lastNode.Spec.Unschedulable
	})
	first := s.get().UID
	s.set(nil)
	until(t, "recreated node", func() bool { n := s.get(); return isReady(n) && n.UID != first })
	got := s.get()
	if !got.Spec.Unschedulable {
		t.Error("the recreated Node is not cordoned")
	}
	if len(got.Spec.Taints) != 1 || got.Spec.Taints[0].Key != "theirs" {
		t.Errorf("got taints %v, want only the one of the other client", got.Spec.Taints)
	}
	if len(got.Spec.PodCIDRs) > 0 {
		t.Errorf("got pod CIDRs %v, want none", got.Spec.PodCIDRs)
	}
	want := map[string]string{
		corev1.LabelHostname:            "n",
		"mine":                          "yes",
		"theirs":                        "kept",
		"unsupported.berth.dev/present": "true",
		"disk.example.com/kind":         "x",
		"node.kubernetes.io/kept":       "x",
		corev1.LabelTopologyZone:        "x",
	}
	if !maps.Equal(got.Labels, want) {
		t.Errorf("got labels %v", got.Labels)
	}
}

// TestRecreatedNodeDropsForbiddenState checks that a node is recreated without labels that it may not
// set.
func TestRecreatedNodeDropsForbiddenState(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	s.mu.Lock()
	s.forbiddenLabel = "theirs"
	s.mu.Unlock()
	w := run(t, s)
	until(t, "ready node", func() bool { return isReady(s.get()) })
	until(t, "watch", func() bool { return s.count("WATCH") > 0 })
	n := s.get()
	n.Labels["theirs"] = "set"
	s.set(n)
	until(t, "update of the Registrar", func() bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		return w.lastNode.Labels["theirs"] != ""
	})
	s.set(nil)
	until(t, "recreated node", func() bool { got := s.get(); return isReady(got) && got.UID != n.UID })
	if got := s.get().Labels; got["theirs"] != "" || got["mine"] != "yes" {
		t.Errorf("got labels %v", got)
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
	expectNoReport := func() {
		t.Helper()
		w.waitForSyncs(t)
		before := s.count("PATCH status")
		w.waitForSyncs(t)
		if n := s.count("PATCH status"); n != before {
			t.Errorf("the unchanged status was reported %d times", n-before)
		}
	}
	expectNoReport()
	since := s.get().Status.Conditions[3].LastTransitionTime
	w.waitForReport(t)
	if c := s.get().Status.Conditions[3]; !c.LastTransitionTime.Equal(&since) {
		t.Errorf("an unchanged condition has a new transition time: %+v", c)
	}
	w.change(func() { w.facts.DiskPressure = true })
	until(t, "pressure", func() bool { return s.get().Status.Conditions[1].Status == corev1.ConditionTrue })
	expectNoReport()
	w.change(func() { w.facts.DeclaredFeatures = []string{"A", "B"} })
	until(t, "declared features", func() bool {
		return slices.Equal(s.get().Status.DeclaredFeatures, []string{"A", "B"})
	})
	w.change(func() { w.facts.DeclaredFeatures = []string{"B"} })
	until(t, "one feature less", func() bool { return slices.Equal(s.get().Status.DeclaredFeatures, []string{"B"}) })
	w.change(func() { w.facts.DeclaredFeatures = nil })
	until(t, "no declared features", func() bool { return len(s.get().Status.DeclaredFeatures) == 0 })
	expectNoReport()
	lost := s.get()
	for i := range lost.Status.Conditions {
		lost.Status.Conditions[i].Status, lost.Status.Conditions[i].Reason = corev1.ConditionUnknown,
			"NodeStatusUnknown"
	}
	s.set(lost)
	until(t, "report after an overwritten status", func() bool { return isReady(s.get()) })
	expectNoReport()
}

// TestStatusSyncedAfterTrigger checks that the status is synced only after the server's response.
func TestStatusSyncedAfterTrigger(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	w := run(t, s, func(o *Options) { o.StatusUpdateFrequency = time.Hour })
	until(t, "ready node", func() bool { return isReady(s.get()) })
	if !w.p.StatusSynced() {
		t.Error("not synced without a trigger")
	}
	hang, before := make(chan struct{}), s.count("PATCH status")
	s.mu.Lock()
	s.hang = hang
	s.mu.Unlock()
	w.change(func() { w.facts.NotReady = "node is shutting down" })
	w.p.Trigger()
	until(t, "status request", func() bool { return s.count("PATCH status") > before })
	if w.p.StatusSynced() {
		t.Error("synced before the server responded")
	}
	s.mu.Lock()
	s.hang = nil
	s.mu.Unlock()
	close(hang)
	if until(t, "response", w.p.StatusSynced); isReady(s.get()) {
		t.Error("synced although the server rejected it")
	}
}

func TestConditionEventsAreRecordedOnce(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	w := run(t, s)
	until(t, "ready node", func() bool { return isReady(s.get()) })
	w.waitForSyncs(t)
	w.waitForReport(t)
	w.waitForSyncs(t)
	want := []string{"NodeHasSufficientMemory", "NodeHasNoDiskPressure", "NodeHasSufficientPID", "NodeReady"}
	if got := w.recordedEvents(); !slices.Equal(got, want) {
		t.Errorf("got events %v", got)
	}
	w.change(
		func() { w.facts.NotReady, w.facts.Network = "no network", &NetworkCondition{Reason: "BerthHasRoutes"} },
	) // the network condition has no event
	until(t, "unready node", func() bool { return !isReady(s.get()) })
	w.change(func() { w.facts.NotReady = "" })
	until(t, "ready node again", func() bool { return isReady(s.get()) })
	w.waitForSyncs(t)
	if got := w.recordedEvents(); !slices.Equal(got, append(want, "NodeNotReady", "NodeReady")) {
		t.Errorf("got events %v", got)
	}
}

// TestLeaseUsesSeparateConnection checks that the lease is renewed while requests for the Node hang.
func TestLeaseUsesSeparateConnection(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	w := run(t, s)
	until(t, "ready node", func() bool { return isReady(s.get()) })
	w.waitForSyncs(t)
	hang := make(chan struct{})
	defer close(hang)
	s.mu.Lock()
	s.hang = hang
	s.mu.Unlock()
	leaseBefore, statusBefore := s.count("PATCH n"), s.count("PATCH status")
	w.change(func() { w.facts.MemoryPressure = true })
	until(t, "status request", func() bool { return s.count("PATCH status") > statusBefore })
	until(t, "renewals", func() bool { return s.count("PATCH n") >= leaseBefore+3 })
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, err := range w.renewals {
		if err != nil && !errors.Is(err, context.DeadlineExceeded) { // possible on a busy machine
			t.Error(err)
		}
	}
}

// The connection drops all data silently, but a new connection would work.
func TestUnresponsiveConnectionIsClosed(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	proxy := newProxy(t, s)
	w := run(t, s, func(o *Options) { o.Client, o.HeartbeatClient = proxy.client(), proxy.client() })
	until(t, "ready node", func() bool { return isReady(s.get()) })
	until(t, "watch", func() bool { return s.count("WATCH") > 0 })
	renewed := func() (n int) {
		w.mu.Lock()
		defer w.mu.Unlock()
		for _, err := range w.renewals {
			if err == nil {
				n++
			}
		}
		return n
	}
	until(t, "renewal", func() bool { return renewed() > 0 })
	proxy.blackhole()
	before := renewed()
	w.change(func() { w.facts.MemoryPressure = true })
	until(t, "renewal over another connection", func() bool { return renewed() > before+1 })
	until(
		t,
		"status over another connection",
		func() bool { return s.get().Status.Conditions[0].Status == corev1.ConditionTrue },
	)
}

// TestRespondingServerKeepsConnections checks that errors of a responding server close no connection.
func TestRespondingServerKeepsConnections(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	proxy := newProxy(t, s)
	p := New(Options{Client: proxy.client(), HeartbeatClient: proxy.client(), Name: "n"})
	unavailable := apierrors.NewServiceUnavailable("not now")
	waitForResponse := func() {
		t.Helper()
		for _, c := range []*apiclient.Client{p.opt.Client, p.opt.HeartbeatClient} {
			until(
				t,
				"answer",
				func() bool {
					return apierrors.IsNotFound(c.Get(t.Context(), apiclient.Nodes, "", "n", &corev1.Node{}))
				},
			)
		}
	}
	for _, r := range []struct {
		failed int
		err    error
		left   int
	}{{1, io.EOF, 2}, {2, unavailable, 2}, {3, io.EOF, 2}, {4, io.EOF, 1}, {6, unavailable, 2}, {2, io.EOF, 0}} {
		waitForResponse()
		was := proxy.connectionCount()
		p.reconnect(r.failed, r.err)
		waitForResponse()
		if created := proxy.connectionCount() - was; created != 2-r.left {
			t.Errorf("after %d failures, the last %v: got %d new connections", r.failed, r.err, created)
		}
	}
}

func foreignNode() *corev1.Node {
	n := &corev1.Node{}
	n.Name, n.Annotations = "n", map[string]string{InstallationAnnotation: "there"}
	n.Status.NodeInfo.MachineID = "that machine"
	n.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "192.0.2.7"}}
	return n
}

func TestNameOfLiveMachineIsRejected(t *testing.T) {
	t.Parallel()
	for name, skew := range map[string]time.Duration{
		"same clock": 0, "clock behind": -24 * time.Hour, "clock ahead": 24 * time.Hour,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			checkLiveMachineIsRejected(t, func() time.Time { return time.Now().Add(skew) })
		})
	}
}

// checkLiveMachineIsRejected runs a registrar while another machine with the given clock renews the lease.
func checkLiveMachineIsRejected(t *testing.T, now func() time.Time) {
	t.Helper()
	s := newServer(t)
	s.set(foreignNode())
	s.setLeaseRenewed(now())
	// The time in which a busy machine must renew the lease once.
	w := run(t, s, func(o *Options) { o.LeaseDuration = 10 * time.Second })
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			s.setLeaseRenewed(now())
		case err := <-w.ended:
			for _, want := range []string{"another machine", "that machine", "192.0.2.7", "--hostname-override",
				"stop berth on that machine"} {
				if !strings.Contains(fmt.Sprint(err), want) {
					t.Errorf("error %v does not contain %q", err, want)
				}
			}
			if by := s.get().Annotations[InstallationAnnotation]; by != "there" || s.count("PATCH status") > 0 {
				t.Errorf("the Node was changed: got installation %q", by)
			}
			w.change(func() {
				if w.nameVerified {
					t.Error("OnNameVerified was called for a name in use")
				}
			})
			return
		}
	}
}

func TestNameOfDeadMachineIsAccepted(t *testing.T) {
	t.Parallel()
	for name, ago := range map[string]time.Duration{"stopped long ago": time.Hour, "just stopped": 0} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newServer(t)
			s.set(foreignNode())
			s.setLeaseRenewed(time.Now().Add(-ago))
			w := run(t, s)
			until(
				t,
				"ready node",
				func() bool { n := s.get(); return isReady(n) && n.Annotations[InstallationAnnotation] == "here" },
			)
			w.change(func() {
				if !w.nameVerified {
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
		own         bool
	}{{"here", "that machine", true}, {"there", "this machine", false}, {"", "this machine", true},
		{"", "that machine", false}, {"", "", true}} {
		if got := p.isOwn(t.Context(), node(r.by, r.machine)); got != r.own {
			t.Errorf("installation %q on machine %q: got %v", r.by, r.machine, got)
		}
	}
}
