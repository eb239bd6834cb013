package controllers

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/record"
)

// newNamingClient returns a fake client that sets names and UIDs, as an API server does.
func newNamingClient(objects ...runtime.Object) *fake.Clientset {
	client := fake.NewClientset(objects...)
	var last atomic.Int32
	client.PrependReactor("create", "pods", func(action clienttesting.Action) (bool, runtime.Object, error) {
		create, ok := action.(clienttesting.CreateAction)
		if !ok {
			return false, nil, nil
		}
		pod, ok := create.GetObject().(*corev1.Pod)
		if !ok || pod.GenerateName == "" {
			return false, nil, nil
		}
		pod.Name = fmt.Sprintf("%s%d", pod.GenerateName, last.Add(1))
		pod.Namespace, pod.UID, pod.CreationTimestamp = action.GetNamespace(), types.UID(pod.Name), metav1.Now()
		if err := client.Tracker().Create(action.GetResource(), pod, pod.Namespace); err != nil {
			return true, nil, err //nolint:wrapcheck // the error of an API call
		}
		stored, err := client.Tracker().Get(action.GetResource(), pod.Namespace, pod.Name)
		return true, stored, err //nolint:wrapcheck // the error of an API call
	})
	return client
}

// waitForSync waits until the caches are synced and the controllers are idle.
func waitForSync() {
	time.Sleep(time.Second)
	synctest.Wait()
}

func newReplicationController(replicas int32) *corev1.ReplicationController {
	return &corev1.ReplicationController{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web", UID: "rc", Generation: 7},
		Spec: corev1.ReplicationControllerSpec{
			Replicas: &replicas, Selector: map[string]string{"app": "web"},
			Template: &corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{
				Labels: map[string]string{"app": "web", "tier": "front"}, Annotations: map[string]string{"note": "x"},
				Finalizers: []string{"example.com/f"},
			}},
		},
	}
}

func updateController(t *testing.T, client kubernetes.Interface, f func(rc *corev1.ReplicationController)) {
	t.Helper()
	rc := getController(t, client)
	f(rc)
	if _, err := client.CoreV1().ReplicationControllers("default").Update(t.Context(), rc,
		metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	synctest.Wait()
}

func getController(t *testing.T, client kubernetes.Interface) *corev1.ReplicationController {
	t.Helper()
	rc, err := client.CoreV1().ReplicationControllers("default").Get(t.Context(), "web", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return rc
}

func updatePod(t *testing.T, client kubernetes.Interface, name string, f func(pod *corev1.Pod)) {
	t.Helper()
	pods := client.CoreV1().Pods("default")
	pod, err := pods.Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	f(pod)
	if _, err := pods.Update(t.Context(), pod, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	synctest.Wait()
}

// TestReplicationControllerManagesPods covers creation, release, adoption, deletion and status.
func TestReplicationControllerManagesPods(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		events := record.NewFakeRecorder(100)
		client := startControllers(t, Config{Client: newNamingClient(newReplicationController(2)), Events: events},
			[]string{ReplicationControllers})
		waitForSync()
		if got := podNames(t, client); !slices.Equal(got, []string{"web-1", "web-2"}) {
			t.Fatalf("got %v", got)
		}
		pod, err := client.CoreV1().Pods("default").Get(t.Context(), "web-1", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		yes := true
		want := metav1.OwnerReference{APIVersion: "v1", Kind: "ReplicationController", Name: "web", UID: "rc",
			Controller: &yes, BlockOwnerDeletion: &yes}
		if got := metav1.GetControllerOf(pod); got == nil || got.String() != want.String() ||
			pod.Annotations["note"] != "x" || pod.Labels["tier"] != "front" || len(pod.Finalizers) != 1 {
			t.Errorf("got pod %+v", pod.ObjectMeta)
		}
		updatePod(t, client, "web-1", func(p *corev1.Pod) { delete(p.Labels, "tier"); setReady(p, time.Now()) })
		if s := getController(t, client).Status; s.Replicas != 2 || s.FullyLabeledReplicas != 1 ||
			s.ReadyReplicas != 1 ||
			s.AvailableReplicas != 1 || s.ObservedGeneration != 7 {
			t.Errorf("got status %+v", s)
		}
		updatePod(t, client, "web-1", func(p *corev1.Pod) { p.Labels["app"] = "other" })
		if pod, err = client.CoreV1().Pods("default").Get(t.Context(), "web-1", metav1.GetOptions{}); err != nil ||
			len(pod.OwnerReferences) > 0 {
			t.Errorf("pod not released: %+v, %v", pod.OwnerReferences, err)
		}
		if got := podNames(t, client); !slices.Equal(got, []string{"web-1", "web-2", "web-3"}) {
			t.Errorf("after the release, got pods %v", got)
		}
		updatePod(t, client, "web-1", func(p *corev1.Pod) { p.Labels["app"] = "web" })
		if got := podNames(t, client); len(got) != 2 || !slices.Contains(got, "web-1") {
			t.Errorf("after the adoption, got pods %v", got)
		}
		updatePod(t, client, "web-1", func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed })
		if got := podNames(t, client); len(got) != 3 {
			t.Errorf("after the failure, got pods %v", got)
		}
		updateController(t, client, func(rc *corev1.ReplicationController) { rc.Spec.Replicas = new(int32) })
		if got := podNames(t, client); !slices.Equal(got, []string{"web-1"}) {
			t.Errorf("with zero replicas, got pods %v", got)
		}
		first := <-events.Events
		if first != "Normal SuccessfulCreate Created pod: web-1" {
			t.Errorf("got first event %q", first)
		}
	})
}

func setReady(p *corev1.Pod, since time.Time) {
	p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue,
		LastTransitionTime: metav1.NewTime(since)}}
}

// TestDeletedSetCreatesNoPods: only its status is updated.
func TestDeletedSetCreatesNoPods(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rc, now := newReplicationController(2), metav1.Now()
		rc.DeletionTimestamp, rc.Finalizers = &now, []string{metav1.FinalizerDeleteDependents}
		orphan := newPod("orphan", "", func(p *corev1.Pod) { p.Labels = map[string]string{"app": "web"} })
		client := startControllers(t, Config{Client: newNamingClient(rc, orphan)}, []string{ReplicationControllers})
		waitForSync()
		if got := podNames(t, client); !slices.Equal(got, []string{"orphan"}) {
			t.Errorf("got %v", got)
		}
	})
}

// TestSlowWatchCreatesNoDuplicates: the watch delivers no pods at all. The controller reads created
// pods from the API server.
func TestSlowWatchCreatesNoDuplicates(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := newNamingClient(newReplicationController(3))
		client.PrependWatchReactor("pods", func(clienttesting.Action) (bool, watch.Interface, error) {
			return true, watch.NewFake(), nil
		})
		startControllers(t, Config{Client: client}, []string{ReplicationControllers})
		time.Sleep(time.Minute)
		synctest.Wait()
		if got := podNames(t, client); len(got) != 3 {
			t.Fatalf("got %v", got)
		}
		for _, name := range podNames(t, client) {
			if err := client.CoreV1().Pods("default").Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if got := podNames(t, client); len(got) != 3 || slices.Contains(got, "web-1") {
			t.Errorf("after deletion of all pods, got %v", got)
		}
	})
}

// TestFailedCreateIsTriedOncePerSync also checks the condition, the event and the recovery.
func TestFailedCreateIsTriedOncePerSync(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var tries atomic.Int32
		var allowed atomic.Bool
		client := newNamingClient(newReplicationController(40))
		client.PrependReactor("create", "pods", func(clienttesting.Action) (bool, runtime.Object, error) {
			tries.Add(1)
			return !allowed.Load(), nil, errors.New("quota is full")
		})
		events := record.NewFakeRecorder(1000)
		startControllers(t, Config{Client: client, Events: events}, []string{ReplicationControllers})
		waitForSync()
		if n := tries.Load(); n < 1 || n > 8 { // the backoff doubles, starting at 20 ms
			t.Errorf("got %d attempts", n)
		}
		s := getController(t, client).Status
		if len(s.Conditions) != 1 || s.Conditions[0].Type != "ReplicaFailure" || s.Conditions[0].Status != "True" ||
			s.Conditions[0].Reason != "FailedCreate" || s.Conditions[0].Message != "quota is full" {
			t.Errorf("got conditions %+v", s.Conditions)
		}
		if e := <-events.Events; e != "Warning FailedCreate Error creating: quota is full" {
			t.Errorf("got event %q", e)
		}
		allowed.Store(true)
		time.Sleep(time.Minute)
		synctest.Wait()
		if got := podNames(t, client); len(got) != 40 {
			t.Errorf("got %d pods", len(got))
		}
		if s := getController(t, client).Status; len(s.Conditions) != 0 || s.Replicas != 40 {
			t.Errorf("got status %+v", s)
		}
	})
}

// TestTerminatingNamespaceGetsNoPods also checks that no failure is reported.
func TestTerminatingNamespaceGetsNoPods(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, events := newNamingClient(newReplicationController(3)), record.NewFakeRecorder(10)
		client.PrependReactor("create", "pods", func(clienttesting.Action) (bool, runtime.Object, error) {
			err := apierrors.NewForbidden(corev1.Resource("pods"), "", errors.New("namespace is being terminated"))
			err.ErrStatus.Details.Causes = []metav1.StatusCause{{Type: corev1.NamespaceTerminatingCause}}
			return true, nil, err
		})
		startControllers(t, Config{Client: client, Events: events}, []string{ReplicationControllers})
		time.Sleep(time.Minute)
		if s := getController(t, client).Status; len(s.Conditions) > 0 || len(events.Events) > 0 {
			t.Errorf("got status %+v, %d events", s, len(events.Events))
		}
	})
}

func TestReplicasAvailableAfterMinReadySeconds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		set := &appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "set", UID: "set"},
			Spec: appsv1.ReplicaSetSpec{
				MinReadySeconds: 30, Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "a"}},
				Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": "a"}}},
			}}
		client := startControllers(t, Config{Client: newNamingClient(set)}, []string{ReplicaSets})
		waitForSync()
		updatePod(t, client, "set-1", func(p *corev1.Pod) { setReady(p, time.Now()) })
		now := func() string {
			synctest.Wait()
			got, err := client.AppsV1().ReplicaSets("default").Get(t.Context(), "set", metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			return fmt.Sprint(got.Status.Replicas, got.Status.ReadyReplicas, got.Status.AvailableReplicas,
				*got.Status.TerminatingReplicas)
		}
		time.Sleep(29 * time.Second)
		if got := now(); got != "1 1 0 0" {
			t.Errorf("after 29 s: %s", got)
		}
		time.Sleep(2 * time.Second)
		if got := now(); got != "1 1 1 0" {
			t.Errorf("after 31 s: %s", got)
		}
	})
}

// TestDeletionOrder: the first pod of each pair is deleted first.
func TestDeletionOrder(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	pod := func(node string, f ...func(*corev1.Pod)) *corev1.Pod {
		return newPod("p", node, append([]func(*corev1.Pod){func(p *corev1.Pod) {
			setReady(p, now.Add(-time.Hour))
			p.CreationTimestamp = metav1.NewTime(now.Add(-2 * time.Hour))
		}}, f...)...)
	}
	cost := func(value string) func(*corev1.Pod) {
		return func(p *corev1.Pod) { p.Annotations = map[string]string{corev1.PodDeletionCost: value} }
	}
	restarted := func(p *corev1.Pod) { p.Status.ContainerStatuses = []corev1.ContainerStatus{{RestartCount: 1}} }
	rows := map[string][2]*corev1.Pod{
		"not bound": {pod(""), pod("n", func(p *corev1.Pod) {
			p.Status = corev1.PodStatus{
				Phase: corev1.PodPending}
		})},
		"not running yet": {pod("n", func(p *corev1.Pod) { p.Status.Phase = corev1.PodPending }),
			pod("n", func(p *corev1.Pod) { p.Status.Conditions = nil })},
		"not ready": {pod("n", func(p *corev1.Pod) {
			p.Status.Conditions = nil
		}), pod("n", cost("-5"))},
		"lower deletion cost": {pod("n", cost("-5")), pod("n", cost("nonsense"))},
		"with related pods on the node": {pod("full"), pod("n", func(p *corev1.Pod) {
			setReady(p, now.Add(-time.Second))
		})},
		"ready more recently": {pod("n", func(p *corev1.Pod) { setReady(p, now.Add(-time.Minute)) }),
			pod("n", restarted)},
		"more restarts": {pod("n", restarted),
			pod("n", func(p *corev1.Pod) { p.CreationTimestamp = metav1.NewTime(now.Add(-time.Second)) })},
		"created more recently": {pod("n", func(p *corev1.Pod) {
			p.CreationTimestamp = metav1.NewTime(now.Add(-time.Minute))
		}), pod("n")},
		"similar age, by UID": {
			pod("n", func(p *corev1.Pod) { p.UID = "a" }),
			pod("n", func(p *corev1.Pod) { p.CreationTimestamp = metav1.NewTime(now.Add(-121 * time.Minute)) }),
		},
	}
	for name, row := range rows {
		for _, pods := range [][]*corev1.Pod{{row[0], row[1]}, {row[1], row[0]}} {
			if got := deletionOrder(pods, map[string]int{"full": 2, "n": 1}, now); got[0] != row[0] {
				t.Errorf("%s: wrong order", name)
			}
		}
	}
}

// TestRelatedPodCountsIncludeSiblingSets: sets with the same owner are siblings.
func TestRelatedPodCountsIncludeSiblingSets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		yes := true
		set := func(name, up string) *appsv1.ReplicaSet {
			return &appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name,
				UID: types.UID(name),
				OwnerReferences: []metav1.OwnerReference{
					{APIVersion: "apps/v1", Kind: "Deployment", Name: up, UID: types.UID(up), Controller: &yes},
				}}}
		}
		pod := func(name, of string) *corev1.Pod {
			return newPod(name, "n", func(p *corev1.Pod) {
				p.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(set(of, ""),
					appsv1.SchemeGroupVersion.WithKind("ReplicaSet"))}
			})
		}
		client := newNamingClient(set("new", "web"), set("old", "web"), set("other", "db"), pod("a", "old"),
			pod("b", "other"))
		c := Config{Client: client, Informers: informers.NewSharedInformerFactory(client, 0)}
		r := &replicaController{Config: c, replicaKind: replicaSetKind(c)}
		if err := r.indexPods(); err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(t.Context())
		c.Informers.Start(ctx.Done())
		defer c.Informers.Shutdown()
		defer stop()
		c.Informers.WaitForCacheSync(ctx.Done())
		if got := r.relatedPodCounts(set("new", "web"), []*corev1.Pod{pod("c", "new")}); !maps.Equal(got,
			map[string]int{"n": 2}) {
			t.Errorf("got %v", got)
		}
	})
}
