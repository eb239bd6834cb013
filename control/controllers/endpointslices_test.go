package controllers

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

func TestEndpointSlicesFollowNodeZone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		node := newNode("n", corev1.ConditionTrue)
		node.Labels = map[string]string{corev1.LabelTopologyZone: "a"}
		web := map[string]string{"app": "web"}
		svc := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web", UID: "s"},
			Spec: corev1.ServiceSpec{Selector: web,
				Ports: []corev1.ServicePort{{Port: 80, Protocol: corev1.ProtocolTCP}}}}
		serves := func(p *corev1.Pod) { p.Labels, p.Status.PodIP = web, "10.0.0.1" }
		client := startControllers(t, Config{}, []string{EndpointSlices}, node, svc, newPod("p", "n", serves))
		checkZones := func(want string) {
			t.Helper()
			time.Sleep(time.Second)
			synctest.Wait()
			if got := zones(t, client); got != want {
				t.Errorf("got zones %s, want %s", got, want)
			}
		}
		checkZones("[a]")
		node = getNode(t, client, "n")
		node.Labels[corev1.LabelTopologyZone] = "b"
		if _, err := client.CoreV1().Nodes().Update(t.Context(), node, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		checkZones("[b]")
	})
}

func zones(t *testing.T, client kubernetes.Interface) string {
	t.Helper()
	all, err := client.DiscoveryV1().EndpointSlices("default").List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for i := range all.Items {
		for _, e := range all.Items[i].Endpoints {
			if e.Zone != nil {
				out = append(out, *e.Zone)
			}
		}
	}
	return fmt.Sprint(out)
}
