package pair

import (
	"fmt"
	"strings"

	"berth/test/images"
)

// testReplicationController checks that a deleted pod is replaced, and that foreground deletion deletes
// all pods before the controller.
func (p *Pair) testReplicationController() {
	t := p.t
	p.Apply(t, fmt.Sprintf(`apiVersion: v1
kind: ReplicationController
metadata: {name: many, namespace: default}
spec:
  replicas: 3
  selector: {app: many}
  template:
    metadata: {labels: {app: many}}
    spec:
      terminationGracePeriodSeconds: 1
      containers: [{name: c, image: %q, args: [serve], ports: [{containerPort: 8080}]}]
`, images.TestboxRef))
	names := func() []string {
		return strings.Fields(p.Kubectl(t, "get", "pods", "-l", "app=many", "-o",
			"jsonpath={range .items[*]}{.metadata.name} {end}"))
	}
	p.waitForField("replicationcontroller", "many", ".status.readyReplicas", "3")
	p.waitForField("replicationcontroller", "many", ".status.availableReplicas", "3")
	first := names()[0]
	p.Kubectl(t, "delete", "pod", first, "--timeout=4m")
	p.waitUntil("a replacement of pod "+first, func() string {
		if current := strings.Join(names(), " "); strings.Contains(current, first) ||
			len(strings.Fields(current)) != 3 {
			return current
		}
		return ""
	})
	p.waitForField("replicationcontroller", "many", ".status.readyReplicas", "3")
	p.Kubectl(t, "scale", "rc/many", "--replicas=1")
	p.waitForField("replicationcontroller", "many", ".status.replicas", "1")
	p.Kubectl(t, "delete", "rc", "many", "--cascade=foreground", "--timeout=4m")
	if left := names(); len(left) > 0 {
		t.Errorf("ReplicationController was deleted before its pods %v", left)
	}
	p.waitUntil("removal of the pod directories", func() string {
		return strings.Join(p.remainingPodDirs("many-*"), " ")
	})
}
