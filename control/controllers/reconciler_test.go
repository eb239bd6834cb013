package controllers

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/record"

	"berth/workloads"
)

type setDecision = workloads.Decision[appsv1.ReplicaSetStatus]

var setKind = metav1.TypeMeta{APIVersion: "apps/v1", Kind: "ReplicaSet"}

// testWorkload returns a workload of ReplicaSets with the given decision about the observed pods.
func testWorkload(c Config, decide func(set *appsv1.ReplicaSet, pods []*corev1.Pod,
	failed *workloads.WriteError) setDecision) workload[*appsv1.ReplicaSet, appsv1.ReplicaSetStatus] {
	pods := c.Informers.Core().V1().Pods().Informer()
	return workload[*appsv1.ReplicaSet, appsv1.ReplicaSetStatus]{
		kind: appsv1.SchemeGroupVersion.WithKind("ReplicaSet"),
		objects: newObjectType[*appsv1.ReplicaSet](c.Informers.Apps().V1().ReplicaSets().Informer(),
			c.Client.AppsV1().ReplicaSets),
		children: []*objectType{newObjectType[*corev1.Pod](pods, c.Client.CoreV1().Pods)},
		selector: func(set *appsv1.ReplicaSet) *metav1.LabelSelector { return set.Spec.Selector },
		decide: func(set *appsv1.ReplicaSet, _ time.Time, failed *workloads.WriteError) setDecision {
			return decide(set, childrenAndOrphansOf[*corev1.Pod](pods, set), failed)
		},
		status: func(set *appsv1.ReplicaSet) *appsv1.ReplicaSetStatus { return &set.Status },
		updateStatus: func(ctx context.Context, set *appsv1.ReplicaSet) (*appsv1.ReplicaSet, error) {
			return c.Client.AppsV1().ReplicaSets(set.Namespace).UpdateStatus(ctx, set, metav1.UpdateOptions{})
		},
		workers: 2,
	}
}

// startWorkload runs the reconciler of testWorkload until the returned function is called.
func startWorkload(t *testing.T, client *fake.Clientset, events record.EventRecorder,
	decide func(*appsv1.ReplicaSet, []*corev1.Pod, *workloads.WriteError) setDecision) (stop func()) {
	t.Helper()
	c := Config{Client: client, Events: events, Log: slog.New(slog.DiscardHandler),
		Informers: informers.NewSharedInformerFactory(client, 0)}
	ctrl, err := newReconciler(c, testWorkload(c, decide))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	c.Informers.Start(ctx.Done())
	var wg sync.WaitGroup
	wg.Go(func() { ctrl.run(ctx) })
	return sync.OnceFunc(func() {
		cancel()
		wg.Wait()
		c.Informers.Shutdown()
	})
}

func newSet(replicas int32) *appsv1.ReplicaSet {
	app := map[string]string{"app": "web"}
	return &appsv1.ReplicaSet{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web", UID: "set"},
		Spec: appsv1.ReplicaSetSpec{Replicas: &replicas, Selector: &metav1.LabelSelector{MatchLabels: app},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: app}}},
	}
}

func childOf(set *appsv1.ReplicaSet) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace: set.Namespace, GenerateName: set.Name + "-", Labels: set.Spec.Template.Labels,
		OwnerReferences: []metav1.OwnerReference{workloads.ControllerRef(set, setKind)},
		Annotations:     map[string]string{"desired": strconv.Itoa(int(*set.Spec.Replicas))},
	}}
}

// keepReplicas creates missing pods and deletes surplus ones.
func keepReplicas(set *appsv1.ReplicaSet, pods []*corev1.Pod, failed *workloads.WriteError) (d setDecision) {
	own, writes := workloads.Claim(set, setKind, labels.SelectorFromSet(set.Spec.Selector.MatchLabels), pods)
	d.Writes = writes
	for n := len(own); n < int(*set.Spec.Replicas); n++ {
		d.Writes = append(d.Writes, workloads.Write{Verb: workloads.Create, Object: childOf(set),
			Success: workloads.Event{Type: "Normal", Reason: "Made", Message: "Created pod: %s"},
			Failure: workloads.Event{Type: "Warning", Reason: "Failed", Message: "Error: %s"}})
	}
	slices.SortFunc(own, func(a, b *corev1.Pod) int { return strings.Compare(a.Name, b.Name) })
	for n := len(own); n > int(*set.Spec.Replicas); n-- {
		d.Writes = append(d.Writes, workloads.Write{Verb: workloads.Delete, Object: own[n-1]})
	}
	d.Status = &appsv1.ReplicaSetStatus{Replicas: int32(len(own))}
	if failed != nil {
		d.Status.Conditions = []appsv1.ReplicaSetCondition{{Type: "Failed", Message: failed.Error()}}
	}
	return d
}

func getSet(t *testing.T, client *fake.Clientset) *appsv1.ReplicaSet {
	t.Helper()
	set, err := client.AppsV1().ReplicaSets("default").Get(t.Context(), "web", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return set
}

// slowWatches delays the events of all watches by up to max each, and keeps their order.
func slowWatches(client *fake.Clientset, rng *rand.Rand, longest time.Duration) {
	var mu sync.Mutex
	client.PrependWatchReactor("*", func(action clienttesting.Action) (bool, watch.Interface, error) {
		options := metav1.ListOptions{}
		if w, ok := action.(clienttesting.WatchActionImpl); ok {
			options = w.ListOptions
		}
		w, err := client.Tracker().Watch(action.GetResource(), action.GetNamespace(), options)
		if err != nil {
			return true, nil, fmt.Errorf("watch: %w", err)
		}
		events := make(chan watch.Event)
		out := watch.NewProxyWatcher(events)
		go func() {
			defer w.Stop()
			for {
				select {
				case <-out.StopChan():
					return
				case event := <-w.ResultChan():
					mu.Lock()
					delay := time.Duration(rng.Int64N(int64(longest)))
					mu.Unlock()
					time.Sleep(delay)
					select {
					case events <- event:
					case <-out.StopChan():
						return
					}
				}
			}
		}()
		return true, out, nil
	})
}

// countPods returns the number of pods in the store. Reactors must not use the client.
func countPods(t *testing.T, client *fake.Clientset) int {
	t.Helper()
	list, err := client.Tracker().List(corev1.SchemeGroupVersion.WithResource("pods"),
		corev1.SchemeGroupVersion.WithKind("Pod"), "default")
	pods, ok := list.(*corev1.PodList)
	if err != nil || !ok {
		t.Errorf("list pods: %v", err)
		return 0
	}
	return len(pods.Items)
}

// TestReconcilerCountsOwnWrites runs a seeded world with slow watches, deleted pods, edits and restarts of the
// reconciler. A pod too many would be created if a decision missed an earlier creation, deletion or release.
func TestReconcilerCountsOwnWrites(t *testing.T) {
	for seed := range uint64(8) {
		synctest.Test(t, func(t *testing.T) {
			rng := rand.New(rand.NewPCG(seed, 0))
			client := newNamingClient(newSet(3))
			slowWatches(client, rand.New(rand.NewPCG(seed, 1)), 3*time.Second)
			client.PrependReactor("create", "pods", func(action clienttesting.Action) (bool, runtime.Object, error) {
				live, desired := countPods(t, client), 0
				if create, ok := action.(clienttesting.CreateAction); ok {
					pod, _ := create.GetObject().(*corev1.Pod)
					desired, _ = strconv.Atoi(pod.Annotations["desired"])
				}
				if live >= desired {
					t.Errorf("seed %d: created a pod beside %d others, desired %d", seed, live, desired)
				}
				return false, nil, nil
			})
			events := record.NewFakeRecorder(10000)
			stop := startWorkload(t, client, events, keepReplicas)
			defer func() { stop() }()
			for range 40 {
				time.Sleep(time.Duration(rng.Int64N(int64(4 * time.Second))))
				switch names := podNames(t, client); {
				case rng.IntN(8) == 0:
					stop()
					synctest.Wait()
					stop = startWorkload(t, client, events, keepReplicas)
				case rng.IntN(4) == 0:
					synctest.Wait()
					set := getSet(t, client)
					n := 1 + rng.Int32N(5)
					set.Spec.Replicas = &n
					if _, err := client.AppsV1().ReplicaSets("default").Update(t.Context(), set,
						metav1.UpdateOptions{}); err != nil {
						t.Fatal(err)
					}
				case len(names) > 0:
					_ = client.CoreV1().Pods("default").Delete(t.Context(), names[rng.IntN(len(names))],
						metav1.DeleteOptions{}) // may be gone
				}
			}
			time.Sleep(5 * time.Minute)
			synctest.Wait()
			set, names := getSet(t, client), podNames(t, client)
			if len(names) != int(*set.Spec.Replicas) || int(set.Status.Replicas) != len(names) {
				t.Errorf("seed %d: pods %v, want %d, status %d", seed, names, *set.Spec.Replicas, set.Status.Replicas)
			}
		})
	}
}

// TestReconcilerReportsTakenName: a name that an observed object has is a failure for the decision, without an event.
func TestReconcilerReportsTakenName(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		other := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "taken", UID: "other"}}
		client := newNamingClient(newSet(1), other)
		events := record.NewFakeRecorder(1000)
		stop := startWorkload(t, client, events,
			func(set *appsv1.ReplicaSet, _ []*corev1.Pod, failed *workloads.WriteError) (d setDecision) {
				pod := childOf(set)
				pod.Name, pod.GenerateName = other.Name, ""
				d.Writes = []workloads.Write{{Verb: workloads.Create, Object: pod,
					Failure: workloads.Event{Type: "Warning", Reason: "Failed", Message: "Error: %s"}}}
				if failed != nil && apierrors.IsAlreadyExists(failed) {
					d.Status = &appsv1.ReplicaSetStatus{Conditions: []appsv1.ReplicaSetCondition{{Type: "Taken"}}}
				}
				return d
			})
		defer stop()
		time.Sleep(time.Minute)
		synctest.Wait()
		if set := getSet(t, client); len(set.Status.Conditions) != 1 || set.Status.Conditions[0].Type != "Taken" {
			t.Errorf("got status %+v", set.Status)
		}
		if len(events.Events) > 0 {
			t.Errorf("got event %q, want none", <-events.Events)
		}
	})
}

// TestReconcilerStopsAtFirstFailure: the decision about the failure observes the earlier writes of the sync, and
// only its status and its events are used.
func TestReconcilerStopsAtFirstFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, tries := newNamingClient(newSet(40)), atomic.Int32{}
		var full atomic.Bool
		full.Store(true)
		client.PrependReactor("create", "pods", func(clienttesting.Action) (bool, runtime.Object, error) {
			return full.Load() && tries.Add(1) > 3, nil, errors.New("quota is full")
		})
		slowWatches(client, rand.New(rand.NewPCG(1, 1)), 50*time.Millisecond)
		events := record.NewFakeRecorder(1000)
		stop := startWorkload(t, client, events, func(set *appsv1.ReplicaSet, pods []*corev1.Pod,
			failed *workloads.WriteError) setDecision {
			d := keepReplicas(set, pods, failed)
			if failed != nil {
				d.Events = []workloads.Event{{Type: "Normal", Reason: "Suspended", Message: "after a failure"}}
			}
			return d
		})
		defer stop()
		time.Sleep(time.Second)
		synctest.Wait()
		set := getSet(t, client)
		if len(set.Status.Conditions) != 1 || set.Status.Conditions[0].Message != "quota is full" ||
			set.Status.Replicas != 3 {
			t.Errorf("got status %+v", set.Status)
		}
		if n := tries.Load(); n < 8 || n > 20 { // batches of 1, 2 and 4, then 1 each time
			t.Errorf("got %d attempts", n)
		}
		got := map[string]int{}
		for len(events.Events) > 0 {
			got[strings.Split(<-events.Events, ":")[0]]++
		}
		if got["Normal Made Created pod"] != 3 || got["Warning Failed Error"] < 4 ||
			got["Normal Suspended after a failure"] < 4 {
			t.Errorf("got events %v", got)
		}
		full.Store(false)
		time.Sleep(time.Minute)
		synctest.Wait()
		if set = getSet(t, client); len(set.Status.Conditions) != 0 || set.Status.Replicas != 40 {
			t.Errorf("after the recovery, got status %+v", set.Status)
		}
	})
}

// TestReconcilerLimitsBursts: 500 objects are created in one sync, and the rest when these are observed.
func TestReconcilerLimitsBursts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, decided := newNamingClient(newSet(1100)), []int{}
		stop := startWorkload(t, client, &record.FakeRecorder{}, func(set *appsv1.ReplicaSet, pods []*corev1.Pod,
			failed *workloads.WriteError) setDecision {
			if len(decided) == 0 || decided[len(decided)-1] != len(pods) {
				decided = append(decided, len(pods))
			}
			return keepReplicas(set, pods, failed)
		})
		defer stop()
		waitForSync()
		if !slices.Equal(decided, []int{0, 500, 1000, 1100}) {
			t.Errorf("decisions were made with %v pods", decided)
		}
	})
}

// TestExecutorLimitsConcurrentWrites: two executions together have no more writes in flight than one may have.
func TestExecutorLimitsConcurrentWrites(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var running, most, total atomic.Int32
		pods := &objectType{goType: reflect.TypeFor[*corev1.Pod](),
			create: func(_ context.Context, obj workloads.Object) (workloads.Object, error) {
				total.Add(1)
				if n := running.Add(1); n > most.Load() {
					most.Store(n)
				}
				time.Sleep(time.Millisecond)
				running.Add(-1)
				return obj, nil
			}}
		x := &executor{types: map[reflect.Type]*objectType{pods.goType: pods}, log: slog.New(slog.DiscardHandler),
			slots: make(chan struct{}, maxConcurrentWrites)}
		var both sync.WaitGroup
		for _, name := range []string{"a", "b"} {
			set := newSet(200)
			set.Name, set.UID = name, types.UID(name)
			var writes []workloads.Write
			for range 200 {
				writes = append(writes, workloads.Write{Verb: workloads.Create, Object: childOf(set)})
			}
			both.Go(func() {
				if err := x.start("default/"+name, set).apply(t.Context(), writes); err != nil {
					t.Error(err)
				}
			})
		}
		both.Wait()
		if most.Load() != maxConcurrentWrites || total.Load() != 400 {
			t.Errorf("%d writes, at most %d at once", total.Load(), most.Load())
		}
	})
}

// TestReconcilerPatchesKeepConcurrentChanges: an adoption keeps the finalizer and the owner that the informer has not
// observed, and is not made for a set that was deleted meanwhile.
func TestReconcilerPatchesKeepConcurrentChanges(t *testing.T) {
	for name, deleted := range map[string]bool{"adopted": false, "set deleted meanwhile": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				orphan := newPod("orphan", "", func(p *corev1.Pod) { p.Labels = map[string]string{"app": "web"} })
				client := newNamingClient(newSet(1), orphan)
				var once sync.Once
				stop := startWorkload(t, client, &record.FakeRecorder{}, func(set *appsv1.ReplicaSet,
					pods []*corev1.Pod, failed *workloads.WriteError) setDecision {
					once.Do(func() {
						updateObservedPod(t, client, deleted)
					})
					return keepReplicas(set, pods, failed)
				})
				defer stop()
				waitForSync()
				pod, err := client.CoreV1().Pods("default").Get(t.Context(), "orphan", metav1.GetOptions{})
				if err != nil {
					t.Fatal(err)
				}
				owners := map[string]bool{}
				for _, ref := range pod.OwnerReferences {
					owners[ref.Name] = true
				}
				if want := map[string]bool{"foreign": true, "web": true}; !deleted && !maps.Equal(owners, want) ||
					deleted && owners["web"] || len(pod.Finalizers) != 1 {
					t.Errorf("got owners %v and finalizers %v", owners, pod.Finalizers)
				}
			})
		})
	}
}

// updateObservedPod changes the pod "orphan" and optionally deletes the set, as another client would.
func updateObservedPod(t *testing.T, client *fake.Clientset, deleteSet bool) {
	t.Helper()
	pod, err := client.CoreV1().Pods("default").Get(t.Context(), "orphan", metav1.GetOptions{})
	if err != nil {
		t.Error(err)
		return
	}
	pod.Finalizers = []string{"example.com/f"}
	pod.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "ConfigMap", Name: "foreign", UID: "f"}}
	if _, err := client.CoreV1().Pods("default").Update(t.Context(), pod, metav1.UpdateOptions{}); err != nil {
		t.Error(err)
	}
	if deleteSet {
		if err := client.AppsV1().ReplicaSets("default").Delete(t.Context(), "web",
			metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	}
}
