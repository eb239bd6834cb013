package pair

import (
	"context"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"berth/test/images"
)

// testDeployment checks that the pods of a Deployment become ready, and that a rolling update never leaves fewer ready
// pods than maxUnavailable allows.
func (p *Pair) testDeployment() {
	t := p.t
	p.Apply(t, fmt.Sprintf(`apiVersion: apps/v1
kind: Deployment
metadata: {name: app, namespace: default}
spec:
  replicas: 3
  strategy: {rollingUpdate: {maxUnavailable: 1, maxSurge: 1}}
  selector: {matchLabels: {app: app}}
  template:
    metadata: {labels: {app: app}}
    spec:
      terminationGracePeriodSeconds: 1
      containers:
      - {name: c, image: %q, args: [serve], readinessProbe: {tcpSocket: {port: 8080}, periodSeconds: 1}}
`, images.TestboxRef))
	p.Kubectl(t, "rollout", "status", "deployment/app", "--timeout=4m")
	counts := p.countReady("app=app")
	p.Kubectl(t, "set", "env", "deployment/app", "VERSION=2")
	p.Kubectl(t, "rollout", "status", "deployment/app", "--timeout=4m")
	if least := counts(); least < 2 {
		t.Errorf("%d pods were ready during the update, want at least 2", least)
	}
	out := p.Kubectl(t, "get", "pods", "-l", "app=app", "-o",
		`jsonpath={range .items[?(@.status.phase=="Running")]}{.spec.containers[0].env[0].value}{end}`)
	if !strings.Contains(out, "222") {
		t.Errorf("the pods run version %q", out)
	}
	p.Kubectl(t, "delete", "deployment", "app", "--cascade=foreground", "--timeout=4m")
	p.waitUntil("removal of the pod directories", func() string {
		return strings.Join(p.remainingPodDirs("app-*"), " ")
	})
}

// countReady follows the selected pods. The returned function ends that and returns the smallest number of pods that
// were ready and not terminating at once.
func (p *Pair) countReady(selector string) (stop func() int) {
	p.t.Helper()
	ctx, cancel := context.WithCancel(p.t.Context())
	pods := p.Server.Client.CoreV1().Pods(metav1.NamespaceDefault)
	list, err := pods.List(ctx, metav1.ListOptions{LabelSelector: selector})
	if err != nil {
		p.t.Fatal(err)
	}
	ready := map[types.UID]bool{}
	for i := range list.Items {
		if readyPod(&list.Items[i]) {
			ready[list.Items[i].UID] = true
		}
	}
	changes, err := pods.Watch(ctx, metav1.ListOptions{LabelSelector: selector, ResourceVersion: list.ResourceVersion})
	if err != nil {
		p.t.Fatal(err)
	}
	least := make(chan int, 1)
	go func() {
		defer changes.Stop()
		n := len(ready)
		for event := range changes.ResultChan() {
			pod, ok := event.Object.(*corev1.Pod)
			if !ok {
				continue
			}
			if delete(ready, pod.UID); readyPod(pod) {
				ready[pod.UID] = true
			}
			n = min(n, len(ready))
		}
		least <- n
	}()
	return func() int {
		cancel()
		return <-least
	}
}

func readyPod(pod *corev1.Pod) bool {
	if pod.DeletionTimestamp != nil {
		return false
	}
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}
