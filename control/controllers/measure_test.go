package controllers

import (
	"maps"
	"testing"
	"testing/synctest"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/component-base/metrics/legacyregistry"

	"berth/workloads/autoscaling"
)

// metricOf returns the value of a gauge or a counter with at least the labels, and whether it exists.
func metricOf(t *testing.T, name string, labels map[string]string) (value float64, found bool) {
	t.Helper()
	families, err := legacyregistry.DefaultGatherer.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, family := range families {
		if family.GetName() != name {
			continue
		}
		for _, m := range family.GetMetric() {
			missing := maps.Clone(labels)
			maps.DeleteFunc(missing, func(label, value string) bool {
				for _, pair := range m.GetLabel() {
					if pair.GetName() == label && pair.GetValue() == value {
						return true
					}
				}
				return false
			})
			if len(missing) == 0 {
				return m.GetGauge().GetValue() + m.GetCounter().GetValue(), true
			}
		}
	}
	return 0, false
}

func newStatefulSet(name string, replicas int32, policy appsv1.PodManagementPolicyType) *appsv1.StatefulSet {
	app := map[string]string{"app": name}
	return &appsv1.StatefulSet{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: "1"},
		Spec: appsv1.StatefulSetSpec{Replicas: &replicas, PodManagementPolicy: policy,
			Selector: &metav1.LabelSelector{MatchLabels: app},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: app}}},
	}
}

// TestGaugesOfDeletedStatefulSet: a sync that ends after the deletion of its object leaves no gauges.
func TestGaugesOfDeletedStatefulSet(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		client := newNamingClient(newStatefulSet("in-flight", 1, appsv1.ParallelPodManagement))
		proceed := make(chan struct{})
		client.PrependReactor("create", "pods", func(clienttesting.Action) (bool, runtime.Object, error) {
			<-proceed
			return false, nil, nil
		})
		const gauge = "statefulset_controller_statefulset_max_unavailable"
		labels := map[string]string{"statefulset_name": "in-flight"}
		startControllers(t, Config{Client: client}, []string{StatefulSets})
		waitForSync()
		if err := client.Tracker().Delete(appsv1.SchemeGroupVersion.WithResource("statefulsets"), "default",
			"in-flight"); err != nil {
			t.Fatal(err)
		}
		waitForSync()
		close(proceed)
		waitForSync()
		if value, found := metricOf(t, gauge, labels); found {
			t.Errorf("got %v for a deleted set", value)
		}
		if err := client.Tracker().Add(newStatefulSet("in-flight", 0, appsv1.ParallelPodManagement)); err != nil {
			t.Fatal(err)
		}
		waitForSync()
		if _, found := metricOf(t, gauge, labels); !found {
			t.Error("got no gauge for a set")
		}
	})
}

// TestGaugesOfReplacedObject: a deletion that is handled late keeps the gauges of a new object with the same labels.
func TestGaugesOfReplacedObject(t *testing.T) {
	t.Parallel()
	sets := informers.NewSharedInformerFactory(fake.NewClientset(), 0).Apps().V1().StatefulSets().Informer()
	gauges := newStatefulSetGauges(sets)
	check := func(when, policy string, want bool) {
		t.Helper()
		if _, found := metricOf(t, "statefulset_controller_statefulset_unavailable_replicas", map[string]string{
			"statefulset_name": "replaced", "pod_management_policy": policy}); found != want {
			t.Errorf("%s: the gauge exists: %v", when, found)
		}
	}
	store := func(set *appsv1.StatefulSet) {
		if err := sets.GetIndexer().Add(set); err != nil {
			t.Fatal(err)
		}
	}
	old := newStatefulSet("replaced", 1, appsv1.ParallelPodManagement)
	replacement := old.DeepCopy()
	replacement.UID = "2"
	store(old)
	gauges.set(old, 1, 2)
	check("set", "Parallel", true)
	store(replacement)
	gauges.set(replacement, 1, 2)
	gauges.handler().OnDelete(old)
	check("deleted and created again", "Parallel", true)
	other := old.DeepCopy()
	other.UID, other.Spec.PodManagementPolicy = "3", appsv1.OrderedReadyPodManagement
	store(other)
	gauges.handler().OnUpdate(replacement, other)
	gauges.set(replacement, 1, 2)
	gauges.set(other, 1, 2)
	check("replaced by a set with other labels", "Parallel", false)
	check("replaced by a set with other labels", "OrderedReady", true)
}

// TestGaugeOfDeletedAutoscaler: a sync that ends after the deletion of its object leaves no gauge.
func TestGaugeOfDeletedAutoscaler(t *testing.T) {
	t.Parallel()
	objects := informers.NewSharedInformerFactory(fake.NewClientset(), 0).Autoscaling().V2().
		HorizontalPodAutoscalers().Informer()
	a := &autoscalers{gauges: newAutoscalerGauges(objects)}
	hpa := &autoscalingv2.HorizontalPodAutoscaler{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "gone"}}
	for _, exists := range []bool{true, false} {
		if exists {
			if err := objects.GetIndexer().Add(hpa); err != nil {
				t.Fatal(err)
			}
		} else {
			if err := objects.GetIndexer().Delete(hpa); err != nil {
				t.Fatal(err)
			}
			a.gauges.handler().OnDelete(hpa)
		}
		a.measure(hpa, &autoscaling.Input{}, &autoscaling.Decision{}, false, nil, time.Second, time.Second)
		if _, found := metricOf(t, "horizontal_pod_autoscaler_controller_desired_replicas",
			map[string]string{"hpa_name": "gone"}); found != exists {
			t.Errorf("the gauge exists: %v, want %v", found, exists)
		}
	}
}
