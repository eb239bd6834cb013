package pair

import (
	"fmt"
	"strings"

	"berth/test/images"
)

// replaced: the pods of a set run, a deleted pod is replaced, and none is left after the set.
func (p *Pair) replaced() {
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
	p.Kubectl(t, "delete", "pod", first, "--timeout=60s")
	p.until("another in place of "+first, func() string {
		if now := strings.Join(names(), " "); strings.Contains(now, first) || len(strings.Fields(now)) != 3 {
			return now
		}
		return ""
	})
	p.waitForField("replicationcontroller", "many", ".status.readyReplicas", "3")
	p.Kubectl(t, "scale", "rc/many", "--replicas=1")
	p.waitForField("replicationcontroller", "many", ".status.replicas", "1")
	p.Kubectl(t, "delete", "rc", "many", "--cascade=foreground", "--timeout=60s")
	if left := names(); len(left) > 0 {
		t.Errorf("the set was deleted before %v", left)
	}
	p.until("nothing to be left on the node", func() string { return strings.Join(p.leftoverPodDirs("many-*"), " ") })
}
