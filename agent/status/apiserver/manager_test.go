package apiserver

import (
	"context"
	"encoding/json"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/strategicpatch"

	"berth/agent/plan"
	"berth/agent/source"
	"berth/agent/status"
)

func condition(t corev1.PodConditionType, status corev1.ConditionStatus, reason string) corev1.PodCondition {
	return corev1.PodCondition{Type: t, Status: status, Reason: reason}
}

// TestStatusPatchReplacesStatus applies patches as a server does (P2, P3).
func TestStatusPatchReplacesStatus(t *testing.T) {
	t.Parallel()
	was := corev1.Pod{Status: corev1.PodStatus{
		Phase: corev1.PodPending, Reason: "Old", Message: "old", PodIP: "10.0.0.1",
		PodIPs: []corev1.PodIP{{IP: "10.0.0.1"}, {IP: "fd00::1"}},
		Conditions: []corev1.PodCondition{
			condition(corev1.PodReady, corev1.ConditionFalse, "ContainersNotReady"),
			condition(corev1.PodResizePending, corev1.ConditionTrue, "Deferred"),
			condition("example.com/gate", corev1.ConditionTrue, "Other"),
		},
		ContainerStatuses: []corev1.ContainerStatus{{Name: "gone"}, {Name: "c"}},
		NominatedNodeName: "other",
	}}
	want := corev1.PodStatus{
		Phase: corev1.PodRunning, PodIP: "10.0.0.9", PodIPs: []corev1.PodIP{{IP: "10.0.0.9"}},
		Conditions: []corev1.PodCondition{condition(corev1.PodReady, corev1.ConditionTrue, ""),
			condition("example.com/gate", corev1.ConditionFalse, "Older")},
		ContainerStatuses: []corev1.ContainerStatus{{Name: "c", Ready: true}},
	}
	patch, err := statusPatch("u", &want,
		map[corev1.PodConditionType]bool{corev1.PodReady: true, corev1.PodResizePending: true})
	if err != nil {
		t.Fatal(err)
	}
	before, err := json.Marshal(was)
	if err != nil {
		t.Fatal(err)
	}
	text, err := strategicpatch.StrategicMergePatch(before, patch, corev1.Pod{})
	if err != nil {
		t.Fatal(err)
	}
	var now corev1.Pod
	if err := json.Unmarshal(text, &now); err != nil {
		t.Fatal(err)
	}
	st := now.Status
	if now.UID != "u" {
		t.Errorf("the patch names UID %q", now.UID)
	}
	if st.Phase != corev1.PodRunning || st.Reason != "" || st.Message != "" || len(st.PodIPs) != 1 ||
		st.PodIPs[0].IP != "10.0.0.9" {
		t.Errorf("%+v", st)
	}
	if len(st.ContainerStatuses) != 1 || !st.ContainerStatuses[0].Ready || st.NominatedNodeName != "other" {
		t.Errorf("%+v", st)
	}
	byType := map[corev1.PodConditionType]corev1.PodCondition{}
	for _, c := range st.Conditions {
		byType[c.Type] = c
	}
	if c := byType[corev1.PodReady]; c.Status != corev1.ConditionTrue || c.Reason != "" {
		t.Errorf("ready: %+v", c)
	}
	if c := byType["example.com/gate"]; c.Status != corev1.ConditionTrue || c.Reason != "Other" || len(byType) != 2 {
		t.Errorf("conditions: %+v", st.Conditions)
	}
}

func snapshot(uid types.UID, st corev1.PodStatus) *status.Snapshot {
	pod := &corev1.Pod{}
	pod.UID, pod.Namespace, pod.Name = uid, "default", "p"
	return &status.Snapshot{Pod: pod, Status: st, Syncs: 1}
}

// TestOverwrittenStatusSentAgain checks P5.
func TestOverwrittenStatusSentAgain(t *testing.T) {
	t.Parallel()
	now := time.Now()
	p := New(Options{Now: func() time.Time { return now }})
	st := corev1.PodStatus{Phase: corev1.PodRunning,
		Conditions: []corev1.PodCondition{condition(corev1.PodReady, corev1.ConditionTrue, "")}}
	p.SetPodStatus(snapshot("u", st), false)
	e := p.pods["u"]
	if !e.needsRequest() {
		t.Fatal("no request is pending")
	}
	e.synced = true
	reported := &corev1.Pod{Status: *st.DeepCopy()}
	reported.UID, reported.Namespace, reported.Name = "u", "default", "p"
	reported.Status.Conditions = append(reported.Status.Conditions,
		condition("example.com/x", corev1.ConditionTrue, "Other"))
	p.PodUpdated(reported, false)
	if e.needsRequest() {
		t.Error("a change of another writer's condition causes a patch")
	}
	reported = reported.DeepCopy()
	reported.Status.Conditions[0].Status = corev1.ConditionFalse
	p.PodUpdated(reported, false)
	if !e.needsRequest() || !e.notBefore.After(now) {
		t.Errorf("an overwritten condition is not sent again: %+v", e)
	}
	reported = reported.DeepCopy()
	reported.Status.Conditions[0].Status = corev1.ConditionTrue
	p.PodUpdated(reported, false)
	if e.needsRequest() {
		t.Error("a correct condition is sent again")
	}
}

// TestSentConditionDeleted checks that a condition is deleted even if the last report of the
// source, which may be outdated, lacks it.
func TestSentConditionDeleted(t *testing.T) {
	t.Parallel()
	p := New(Options{})
	p.SetPodStatus(snapshot("u", corev1.PodStatus{Phase: corev1.PodRunning,
		Conditions: []corev1.PodCondition{condition(corev1.PodResizeInProgress, corev1.ConditionTrue, "")}}), false)
	e := p.pods["u"]
	older := snapshot("u", corev1.PodStatus{}).Pod
	p.startRequest("u", e, func(func(context.Context) func()) {}) // the response is pending
	p.PodUpdated(older, false)
	if patch, err := statusPatch("u", &corev1.PodStatus{}, e.serverConditions); err != nil ||
		!strings.Contains(string(patch), `{"$patch":"delete","type":"PodResizeInProgress"}`) {
		t.Errorf("%s, %v", patch, err)
	}
}

// TestObjectDeletedAfterLastStatus checks P4.
func TestObjectDeletedAfterLastStatus(t *testing.T) {
	t.Parallel()
	p := New(Options{})
	s := snapshot("u", corev1.PodStatus{Phase: corev1.PodFailed})
	p.SetPodStatus(s, true) // the object has been deleted
	if len(p.pods) != 0 {
		t.Error("a pod without an object is still known")
	}
	at := s.Pod.CreationTimestamp
	s.Pod.DeletionTimestamp = &at
	p.SetPodStatus(s, true)
	e := p.pods["u"]
	if e == nil || !e.needsRequest() || e.synced {
		t.Fatalf("%+v", e)
	}
	e.synced = true
	if !e.needsRequest() {
		t.Error("the object is not deleted")
	}
	p.PodUpdated(s.Pod, true)
	if len(p.pods) != 0 {
		t.Error("a deleted object is still known")
	}
}

func TestTokenBucket(t *testing.T) {
	t.Parallel()
	now := time.Now()
	b := &tokenBucket{tokens: 2, capacity: 2, interval: time.Second, updatedAt: now}
	for range 2 {
		if !b.allow(now) {
			t.Error("an available token was refused")
		}
	}
	if b.allow(now) || b.allow(now.Add(900*time.Millisecond)) || !b.allow(now.Add(1100*time.Millisecond)) {
		t.Error("wrong number of tokens")
	}
	b = &tokenBucket{tokens: 1, capacity: 1, interval: time.Second, updatedAt: now}
	if b.reserve(now) != 0 || b.reserve(now) != time.Second || b.reserve(now) != 2*time.Second {
		t.Error("later reservations must wait longer")
	}
}

// startingStatus is the status of a pod before any container has started.
func startingStatus(more ...corev1.PodCondition) corev1.PodStatus {
	waiting := corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: plan.ReasonCreating}}
	return corev1.PodStatus{Phase: corev1.PodPending, Conditions: more,
		ContainerStatuses: []corev1.ContainerStatus{{Name: "c", State: waiting}}}
}

func TestIsStarting(t *testing.T) {
	t.Parallel()
	waits := func(reason, message string) corev1.PodStatus {
		st := startingStatus()
		st.ContainerStatuses[0].State.Waiting = &corev1.ContainerStateWaiting{Reason: reason, Message: message}
		return st
	}
	change := func(f func(*corev1.PodStatus)) corev1.PodStatus {
		st := startingStatus()
		f(&st)
		return st
	}
	running := corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}
	for _, c := range []struct {
		name string
		st   corev1.PodStatus
		want bool
	}{
		{"nothing is known yet", corev1.PodStatus{Phase: corev1.PodPending}, true},
		{"a container is being created", startingStatus(), true},
		{"it waits for init containers", waits(plan.ReasonInitializing, ""), true},
		{"an image cannot be pulled", waits("ErrImagePull", "no such image"), false},
		{"a container cannot be created", waits(plan.ReasonCreating, "no such volume"), false},
		{"the pod has a reason", change(func(st *corev1.PodStatus) { st.Reason = "Held" }), false},
		{"the pod runs", change(func(st *corev1.PodStatus) {
			st.Phase, st.ContainerStatuses[0].State = corev1.PodRunning,
				running
		}), false},
		{"the pod has failed", change(func(st *corev1.PodStatus) { st.Phase = corev1.PodFailed }), false},
		{"an init container runs", change(func(st *corev1.PodStatus) {
			st.InitContainerStatuses = []corev1.ContainerStatus{{Name: "i", State: running}}
		}), false},
		{"a container was restarted", change(func(st *corev1.PodStatus) {
			st.ContainerStatuses[0].RestartCount = 1
		}), false},
		{"a container has terminated before", change(func(st *corev1.PodStatus) {
			st.ContainerStatuses[0].LastTerminationState.Terminated = &corev1.ContainerStateTerminated{}
		}), false},
		{"an ephemeral container",
			change(func(st *corev1.PodStatus) {
				st.EphemeralContainerStatuses = []corev1.ContainerStatus{{Name: "e"}}
			}), false},
	} {
		if got := isStarting(&c.st); got != c.want {
			t.Errorf("%s: %v", c.name, got)
		}
	}
}

// TestStartingPodStatusDelayed checks P7.
func TestStartingPodStatusDelayed(t *testing.T) {
	t.Parallel()
	begin := time.Now()
	now := begin
	p := New(Options{Now: func() time.Time { return now }})
	p.SetPodStatus(snapshot("u", startingStatus()), false)
	e := p.pods["u"]
	if !p.PodsStarting() || !e.notBefore.Equal(begin.Add(transitionalDelay)) {
		t.Fatalf("sent in %v", e.notBefore.Sub(now))
	}
	now = now.Add(transitionalDelay / 2)
	p.SetPodStatus(snapshot("u", startingStatus(condition(corev1.PodReadyToStartContainers, corev1.ConditionTrue, ""))),
		false)
	if !e.notBefore.Equal(begin.Add(transitionalDelay)) {
		t.Errorf("a change while starting extends the delay: %v", e.notBefore.Sub(begin))
	}
	e.synced = true
	now = now.Add(transitionalDelay)
	p.SetPodStatus(snapshot("u", startingStatus(condition(corev1.PodReadyToStartContainers, corev1.ConditionFalse,
		""))),
		false)
	if !e.notBefore.Equal(now.Add(transitionalDelay)) {
		t.Errorf("the next status is sent in %v", e.notBefore.Sub(now))
	}
	p.SetPodStatus(snapshot("u", corev1.PodStatus{Phase: corev1.PodRunning}), false)
	if !e.notBefore.IsZero() || p.PodsStarting() {
		t.Errorf("the status Running is delayed by %v", e.notBefore.Sub(now))
	}

	p.SetPodStatus(snapshot("v", startingStatus()), false)
	ending := snapshot("v", startingStatus(condition(corev1.PodReadyToStartContainers, corev1.ConditionFalse, "")))
	at := metav1.NewTime(now)
	ending.Pod.DeletionTimestamp = &at
	p.SetPodStatus(ending, false)
	if e := p.pods["v"]; !e.notBefore.IsZero() || p.PodsStarting() {
		t.Errorf("a terminating pod counts as starting: %+v", e)
	}
}

// TestEventsDeferredWhileBusy checks that the deferral is limited.
func TestEventsDeferredWhileBusy(t *testing.T) {
	t.Parallel()
	now, busy := time.Now(), true
	e := NewEventSender(EventSenderOptions{NodeName: "n", Now: func() time.Time { return now },
		Busy: func() bool { return busy }})
	if e.deferred() {
		t.Error("deferred without events")
	}
	e.RecordNodeEvent(corev1.EventTypeNormal, "Starting", "")
	if !e.deferred() {
		t.Error("an event is not deferred while busy")
	}
	busy = false
	if e.deferred() {
		t.Error("an event is deferred although not busy")
	}
	busy, now = true, now.Add(maxDeferral)
	if e.deferred() {
		t.Error("an event is deferred for too long")
	}
	ev := e.next()
	e.requeue(ev)
	if !e.deferred() {
		t.Error("events are sent without an interval")
	}
	if now = now.Add(deferralInterval); e.deferred() {
		t.Error("a requeued event is deferred again")
	}
	e.next()
	for i := range maxDeferred {
		n := strconv.Itoa(i)
		e.enqueue(&corev1.Event{ObjectMeta: metav1.ObjectMeta{Name: n},
			InvolvedObject: corev1.ObjectReference{UID: types.UID(n)}})
	}
	if !e.deferred() {
		t.Error("queued events are not deferred")
	}
	if e.RecordNodeEvent(corev1.EventTypeNormal, "Started", ""); e.deferred() {
		t.Error("events above the limit are deferred")
	}
}

// TestMirrorMatches checks the annotations of a mirror pod, which log shippers use to find the log
// directory, and that an outdated mirror pod does not match.
func TestMirrorMatches(t *testing.T) {
	t.Parallel()
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "n", UID: "u",
		Annotations: map[string]string{
			source.AnnotationSource: source.File, source.AnnotationHash: "u", source.AnnotationContent: "c1",
		}}}
	mirror := newMirror(pod, "node", "owner")
	if a := mirror.Annotations; a[source.AnnotationHash] != "u" || a[corev1.MirrorPodAnnotationKey] != "u" ||
		!mirrorMatches(mirror, pod) {
		t.Errorf("annotations %v", a)
	}
	edited, another, earlier := pod.DeepCopy(), pod.DeepCopy(), mirror.DeepCopy()
	edited.Annotations[source.AnnotationContent] = "c2"
	another.UID = "v"
	// from an earlier release
	earlier.Annotations = map[string]string{source.AnnotationHash: "c1", corev1.MirrorPodAnnotationKey: "c1"}
	if mirrorMatches(mirror, edited) || mirrorMatches(mirror, another) || mirrorMatches(earlier, pod) {
		t.Error("an outdated mirror pod matches")
	}
}

// TestMirrorOfUnsyncedStaticPod checks that a mirror pod is kept before the first sync of its static pod, such as
// while the agent adopts it, and is deleted when no file has the static pod.
func TestMirrorOfUnsyncedStaticPod(t *testing.T) {
	t.Parallel()
	exists, requests := true, 0
	p := New(Options{NodeName: "node", StaticPodMayExist: func(namespace, name string) bool {
		return exists && namespace == "n" && name == "p"
	}})
	mirror := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "n", UID: "object",
		Annotations: map[string]string{corev1.MirrorPodAnnotationKey: "u"}}}
	p.PodUpdated(mirror, false)
	now := time.Now()
	sync := func() {
		now = now.Add(2 * settleDelay)
		p.syncMirrors(now, func(time.Time) {}, func(func(context.Context) func()) { requests++ })
	}
	sync()
	sync()
	if requests != 0 {
		t.Errorf("got %d requests while the static pod has a file, want none", requests)
	}
	exists = false
	sync()
	if requests != 1 {
		t.Errorf("got %d requests without a static pod, want a deletion", requests)
	}
}

// TestRecreatedStaticPod checks that a recreated static pod, which has the same UID, keeps its
// mirror pod.
func TestRecreatedStaticPod(t *testing.T) {
	t.Parallel()
	p := New(Options{NodeName: "node"})
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "n", UID: "u",
		Annotations: map[string]string{source.AnnotationSource: source.File}}}
	put := func(gone bool) { p.SetPodStatus(&status.Snapshot{Pod: pod, Syncs: 1}, gone) }
	name := types.NamespacedName{Namespace: "n", Name: "p"}
	put(false)
	put(true)
	if p.staticPod(name) != nil {
		t.Error("a removed static pod has a mirror pod")
	}
	put(false)
	if p.staticPod(name) == nil {
		t.Error("a recreated static pod has no mirror pod")
	}
}
