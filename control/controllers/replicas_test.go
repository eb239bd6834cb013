package controllers

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/record"
)

// newNamingClient returns a fake client that sets names, UIDs and resource versions, as an API server does.
func newNamingClient(objects ...runtime.Object) *fake.Clientset {
	client := fake.NewClientset(objects...)
	var last, names atomic.Int32
	// The lists of the client have versions from 1 to this one. A write must have a later version, or the
	// informers would count as having observed it.
	last.Store(int32(len(objects)) + 1)
	client.PrependReactor("update", "*", func(action clienttesting.Action) (bool, runtime.Object, error) {
		if update, ok := action.(clienttesting.UpdateAction); ok {
			setVersion(update.GetObject(), last.Add(1))
		}
		return false, nil, nil
	})
	client.PrependReactor("patch", "*", func(action clienttesting.Action) (bool, runtime.Object, error) {
		patch, ok := action.(clienttesting.PatchActionImpl)
		if !ok {
			return false, nil, nil
		}
		// The version is part of the patch: a second write for it would be a second event, and the first one
		// would have the old version.
		var err error
		if patch.Patch, err = withVersion(patch.Patch, last.Add(1)); err != nil {
			return true, nil, err
		}
		return clienttesting.ObjectReaction(client.Tracker())(patch)
	})
	client.PrependReactor("create", "pods", func(action clienttesting.Action) (bool, runtime.Object, error) {
		create, ok := action.(clienttesting.CreateAction)
		if !ok {
			return false, nil, nil
		}
		pod, ok := create.GetObject().(*corev1.Pod)
		if !ok || pod.GenerateName == "" {
			return false, nil, nil
		}
		pod.Name = fmt.Sprintf("%s%d", pod.GenerateName, names.Add(1))
		pod.ResourceVersion = strconv.Itoa(int(last.Add(1)))
		pod.Namespace, pod.UID, pod.CreationTimestamp = action.GetNamespace(), types.UID(pod.Name), metav1.Now()
		if err := client.Tracker().Create(action.GetResource(), pod, pod.Namespace); err != nil {
			return true, nil, err //nolint:wrapcheck // the error of an API call
		}
		stored, err := client.Tracker().Get(action.GetResource(), pod.Namespace, pod.Name)
		return true, stored, err //nolint:wrapcheck // the error of an API call
	})
	return client
}

// withVersion adds a resource version to a merge patch.
func withVersion(patch []byte, version int32) ([]byte, error) {
	var fields map[string]any
	if err := json.Unmarshal(patch, &fields); err != nil {
		return nil, fmt.Errorf("merge patch: %w", err)
	}
	err := unstructured.SetNestedField(fields, strconv.Itoa(int(version)), "metadata", "resourceVersion")
	if err != nil {
		return nil, err
	}
	return json.Marshal(fields)
}

func setVersion(obj runtime.Object, version int32) {
	if m, err := meta.Accessor(obj); err == nil {
		m.SetResourceVersion(strconv.Itoa(int(version)))
	}
}

// waitForSync waits until the caches are synced and the controllers are idle.
func waitForSync() {
	time.Sleep(time.Second)
	synctest.Wait()
}

// TestReplicaSetReportsEachBurst: the status follows every 500 created or deleted pods. Each sync has one status write.
func TestReplicaSetReportsEachBurst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		set := newSet(1100)
		set.Generation = 3
		client := newNamingClient(set)
		var mu sync.Mutex
		var reported []int32
		client.PrependReactor("update", "replicasets", func(action clienttesting.Action) (bool, runtime.Object, error) {
			update, ok := action.(clienttesting.UpdateAction)
			if !ok || action.GetSubresource() != "status" {
				return false, nil, nil
			}
			mu.Lock()
			defer mu.Unlock()
			if set, ok := update.GetObject().(*appsv1.ReplicaSet); ok {
				reported = append(reported, set.Status.Replicas)
				if set.Status.ObservedGeneration != set.Generation || len(set.Status.Conditions) > 0 {
					t.Errorf("got status %+v", set.Status)
				}
			}
			return false, nil, nil
		})
		startControllers(t, Config{Client: client, Events: &record.FakeRecorder{}}, []string{"replicaset-controller"})
		check := func(want ...int32) {
			t.Helper()
			time.Sleep(time.Minute)
			synctest.Wait()
			mu.Lock()
			defer mu.Unlock()
			if !slices.Equal(reported, want) {
				t.Errorf("got status.replicas %v, want %v", reported, want)
			}
			reported = nil
		}
		check(500, 1000, 1100)
		live := getSet(t, client)
		live.Spec.Replicas = new(int32(0))
		live.Generation++
		sets := client.AppsV1().ReplicaSets("default")
		if _, err := sets.Update(t.Context(), live, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		check(600, 100, 0)
	})
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
	waitForSync()
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
	waitForSync()
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
		time.Sleep(28 * time.Second)
		if got := now(); got != "1 1 0 0" {
			t.Errorf("after 29 s: %s", got)
		}
		time.Sleep(2 * time.Second)
		if got := now(); got != "1 1 1 0" {
			t.Errorf("after 31 s: %s", got)
		}
	})
}

// TestScaleDownConsidersPodsOfSiblingSets: the pod that shares its node with one of the owner's other set goes first.
func TestScaleDownConsidersPodsOfSiblingSets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		yes := true
		set := func(name string, replicas int32) *appsv1.ReplicaSet {
			app := map[string]string{"app": name}
			return &appsv1.ReplicaSet{
				ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID(name),
					OwnerReferences: []metav1.OwnerReference{
						{APIVersion: "apps/v1", Kind: "Deployment", Name: "web", UID: "web", Controller: &yes},
					}},
				Spec: appsv1.ReplicaSetSpec{Replicas: &replicas, Selector: &metav1.LabelSelector{MatchLabels: app},
					Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: app}}},
			}
		}
		current, old := set("new", 1), set("old", 1)
		pod := func(name, node string, of *appsv1.ReplicaSet) *corev1.Pod {
			return newPod(name, node, func(p *corev1.Pod) {
				p.Labels = of.Spec.Selector.MatchLabels
				p.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(of,
					appsv1.SchemeGroupVersion.WithKind("ReplicaSet"))}
			})
		}
		client := newNamingClient(current, old, pod("alone", "a", current), pod("shared", "b", current),
			pod("other", "b", old))
		startControllers(t, Config{Client: client}, []string{ReplicaSets})
		waitForSync()
		if got := podNames(t, client); !slices.Equal(got, []string{"alone", "other"}) {
			t.Errorf("got %v", got)
		}
	})
}

// TestManyPodChangesAreOneSync: changes of the pods of a large ReplicationController wait, so that its status is not
// written for each. The status is right in the end.
func TestManyPodChangesAreOneSync(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const replicas = 100
		client := newNamingClient(newReplicationController(replicas))
		startControllers(t, Config{Client: client}, []string{ReplicationControllers})
		waitForSync()
		writes := atomic.Int32{}
		client.PrependReactor("update", "replicationcontrollers",
			func(clienttesting.Action) (bool, runtime.Object, error) {
				writes.Add(1)
				return false, nil, nil
			})
		pods := client.CoreV1().Pods("default")
		list, err := pods.List(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		for i := range list.Items {
			pod := &list.Items[i]
			pod.Status.Phase = corev1.PodRunning
			pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
			if _, err := pods.Update(t.Context(), pod, metav1.UpdateOptions{}); err != nil {
				t.Fatal(err)
			}
			time.Sleep(podDelay(replicas) / 10)
		}
		time.Sleep(podDelay(replicas))
		synctest.Wait()
		if ready := getController(t, client).Status.ReadyReplicas; ready != replicas {
			t.Errorf("%d pods are ready, want %d", ready, replicas)
		}
		if n := writes.Load(); n < 5 || n > replicas/5 {
			t.Errorf("the status was written %d times", n)
		}
	})
}

func TestPodDelay(t *testing.T) {
	t.Parallel()
	for pods, want := range map[int32]time.Duration{
		0: 0, 50: 0, 51: 2550 * time.Microsecond, 1000: 50 * time.Millisecond, 100_000: 250 * time.Millisecond,
	} {
		if got := podDelay(pods); got != want {
			t.Errorf("%d pods: %s, want %s", pods, got, want)
		}
	}
}
