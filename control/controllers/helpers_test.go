package controllers

import (
	"context"
	"log/slog"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/record"
)

func TestMain(m *testing.M) {
	registerMetrics()                         // before tests use them in parallel
	watch.DefaultChanSize = 2 * burstReplicas // a fake watch panics if it does not follow the writes of a sync
	os.Exit(m.Run())
}

// startControllers runs controllers against a fake client until the test ends. It must be called in
// a synctest bubble.
func startControllers(t *testing.T, c Config, names []string, objects ...runtime.Object) kubernetes.Interface {
	t.Helper()
	client, given := c.Client.(*fake.Clientset)
	if !given {
		client = fake.NewClientset(objects...)
	}
	if c.Client, c.Log = client, slog.New(slog.DiscardHandler); c.Events == nil {
		c.Events = record.NewFakeRecorder(1000)
	}
	c.Informers = informers.NewSharedInformerFactory(client, 0)
	ctx, cancel := context.WithCancel(t.Context())
	c.StartInformers = func() { c.Informers.Start(ctx.Done()) }
	var wg sync.WaitGroup
	for _, name := range names {
		wg.Go(func() {
			if err := Run(ctx, name, c); err != nil {
				t.Error(err)
			}
		})
	}
	t.Cleanup(func() {
		cancel()
		wg.Wait()
		c.Informers.Shutdown()
	})
	return client
}

// TestControllersShareInformers creates all controllers with shared informers, in both orders of the list.
func TestControllersShareInformers(t *testing.T) {
	t.Parallel()
	reversed := slices.Clone(descriptors)
	slices.Reverse(reversed)
	for name, order := range map[string][]descriptor{"in order": descriptors, "in reverse order": reversed} {
		client := fake.NewClientset()
		c := Config{
			Client: client, Log: slog.New(slog.DiscardHandler), Events: record.NewFakeRecorder(1),
			Informers: informers.NewSharedInformerFactory(client, 0),
		}
		for _, d := range order {
			if _, err := d.newFunc(c); err != nil {
				t.Errorf("%s: create %s: %v", name, d.name, err)
			}
		}
	}
}

func newNode(name string, ready corev1.ConditionStatus) *corev1.Node {
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name)},
		Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{{
			Type: corev1.NodeReady, Status: ready, LastHeartbeatTime: metav1.Now(), Reason: "KubeletReady",
		}}},
	}
}

func newPod(name, node string, change ...func(*corev1.Pod)) *corev1.Pod {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID(name)},
		Spec:       corev1.PodSpec{NodeName: node},
		Status: corev1.PodStatus{Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{
			{Type: corev1.PodReady, Status: corev1.ConditionTrue},
		}},
	}
	for _, f := range change {
		f(pod)
	}
	return pod
}

func withToleration(seconds int64) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		for _, key := range []string{corev1.TaintNodeNotReady, corev1.TaintNodeUnreachable} {
			p.Spec.Tolerations = append(p.Spec.Tolerations, corev1.Toleration{
				Key: key, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute,
				TolerationSeconds: &seconds,
			})
		}
	}
}

// renewLease renews a node's lease.
func renewLease(t *testing.T, client kubernetes.Interface, name string) {
	t.Helper()
	leases := client.CoordinationV1().Leases(corev1.NamespaceNodeLease)
	now := metav1.NewMicroTime(time.Now())
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: corev1.NamespaceNodeLease, Name: name},
		Spec: coordinationv1.LeaseSpec{RenewTime: &now}}
	if _, err := leases.Update(t.Context(), lease, metav1.UpdateOptions{}); err == nil {
		return
	}
	if _, err := leases.Create(t.Context(), lease, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

func getNode(t *testing.T, client kubernetes.Interface, name string) *corev1.Node {
	t.Helper()
	n, err := client.CoreV1().Nodes().Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func podNames(t *testing.T, client kubernetes.Interface) (names []string) {
	t.Helper()
	list, err := client.CoreV1().Pods("").List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for i := range list.Items {
		names = append(names, list.Items[i].Name)
	}
	return names
}
