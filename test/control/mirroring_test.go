package control

import (
	"fmt"
	"strings"
	"testing"

	"berth/control"
	"berth/control/controllers"
)

const manualEndpoints = `apiVersion: v1
kind: Service
metadata: {name: outside}
spec: {ports: [{name: sql, port: 5432}]}
---
apiVersion: v1
kind: Endpoints
metadata: {name: outside, labels: {made: by-hand}}
subsets:
- addresses: [{ip: 192.0.2.1, hostname: one}, {ip: "2001:db8::1"}]
  notReadyAddresses: [{ip: 192.0.2.2}]
  ports: [{name: sql, port: 5432}]
`

// TestEndpointsAreMirrored creates Endpoints for a service without a selector. The server mirrors them to
// one EndpointSlice per IP family, follows every change, and deletes the slices with the service.
func TestEndpointsAreMirrored(t *testing.T) {
	t.Parallel()
	s := Shared(t)
	waitForMirrors := func(want string) {
		t.Helper()
		waitForOutput(t, s, want, "get", "endpointslices", "-l",
			"kubernetes.io/service-name=outside,"+
				"endpointslice.kubernetes.io/managed-by=endpointslicemirroring-controller.k8s.io",
			"--sort-by=.addressType", "-o",
			`jsonpath={range .items[*]}{.addressType} {.metadata.labels.made} `+
				`{.ports[0].name}:{.ports[0].port}{range .endpoints[*]} {.addresses[0]}={.conditions.ready}{end};{end}`)
	}
	s.Apply(t, manualEndpoints)
	waitForMirrors("IPv4 by-hand sql:5432 192.0.2.1=true 192.0.2.2=false;IPv6 by-hand sql:5432 2001:db8::1=true;")
	s.Kubectl(t, "patch", "endpoints", "outside", "--type=merge", "-p",
		`{"subsets":[{"addresses":[{"ip":"192.0.2.2"}],"ports":[{"name":"sql","port":5433}]}]}`)
	waitForMirrors("IPv4 by-hand sql:5433 192.0.2.2=true;")
	s.Kubectl(t, "delete", "endpointslices", "-l", "kubernetes.io/service-name=outside")
	waitForMirrors("IPv4 by-hand sql:5433 192.0.2.2=true;")
	s.Kubectl(t, "label", "endpoints", "outside", "endpointslice.kubernetes.io/skip-mirror=true")
	waitForMirrors("")
	s.Kubectl(t, "label", "endpoints", "outside", "endpointslice.kubernetes.io/skip-mirror-")
	waitForMirrors("IPv4 by-hand sql:5433 192.0.2.2=true;")
	s.Kubectl(t, "delete", "service", "outside")
	waitForMirrors("")
	// The server maintains the slice of its own service itself.
	if out := s.Kubectl(t, "get", "endpointslices", "-n", "default", "-l",
		"endpointslice.kubernetes.io/managed-by=endpointslicemirroring-controller.k8s.io", "-o",
		"name"); strings.TrimSpace(out) != "" && !strings.Contains(out, "No resources") {
		t.Errorf("unexpected mirrored EndpointSlice: %s", out)
	}
}

const scaledOwner = `apiVersion: apps/v1
kind: %[1]s
metadata: {name: %[2]s, namespace: default}
spec:
  replicas: 4
  selector: {matchLabels: {app: %[2]s}}
  %[3]s
  template:
    metadata: {labels: {app: %[2]s}}
    spec: {containers: [{name: c, image: example/c}]}
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata: {name: %[2]s, namespace: default}
spec: {%[4]s, selector: {matchLabels: {app: %[2]s}}}
`

// TestDisruptionBudgetPercentage checks that a percentage applies to the scale of the pods' controller,
// also after the scale changes.
func TestDisruptionBudgetPercentage(t *testing.T) {
	t.Parallel()
	// The controllers must not create pods, because these would count as well, and not scale ReplicaSets.
	s := Start(t, func(c *control.Config) {
		c.Controllers = append(c.Controllers, "-"+controllers.ReplicaSets, "-"+controllers.ReplicationControllers,
			"-"+controllers.Deployments, "-"+controllers.StatefulSets)
	})
	waitForOutput(t, s, "default", "-n", "default", "get", "sa", "default", "-o", "jsonpath={.metadata.name}")
	rows := []struct{ kind, version, name, more, budget, want, scaled string }{
		{"ReplicaSet", "apps/v1", "rs", "", "minAvailable: 50%", "2 4", "4 8"},
		// 30 % of 4 and of 8, rounded up
		{"StatefulSet", "apps/v1", "sts", "serviceName: sts", "maxUnavailable: 30%", "2 4", "5 8"},
		{"Deployment", "apps/v1", "dep", "", "minAvailable: 75%", "3 4", "6 8"},
		{"ReplicationController", "v1", "rc", "", "minAvailable: 25%", "1 4", "2 8"},
	}
	for _, r := range rows {
		text := fmt.Sprintf(scaledOwner, r.kind, r.name, r.more, r.budget)
		if r.kind == "ReplicationController" {
			text = strings.Replace(strings.Replace(text, "apps/v1", "v1", 1),
				"selector: {matchLabels: {app: rc}}\n  \n",
				"selector: {app: rc}\n", 1)
		}
		s.Apply(t, text)
		owner, kind, version := r.name, r.kind, r.version
		if r.kind == "Deployment" { // the pods are owned by a ReplicaSet
			s.Apply(t, deploymentReplicaSet(s.Kubectl(t, "get", "deployment", "dep", "-o", "jsonpath={.metadata.uid}")))
			owner, kind = "dep-set", "ReplicaSet"
		}
		uid := s.Kubectl(t, "get", strings.ToLower(kind), owner, "-o", "jsonpath={.metadata.uid}")
		s.Apply(t, fmt.Sprintf(`apiVersion: v1
kind: Pod
metadata:
  name: %[1]s-pod
  namespace: default
  labels: {app: %[1]s}
  ownerReferences: [{apiVersion: %[2]s, kind: %[3]s, name: %[4]s, uid: %[5]s, controller: true}]
spec: {containers: [{name: c, image: example/c}]}
`, r.name, version, kind, owner, uid))
		waitForOutput(t, s, r.want, "get", "pdb", r.name, "-o",
			"jsonpath={.status.desiredHealthy} {.status.expectedPods}")
	}
	for _, r := range rows {
		s.Kubectl(t, "scale", "--replicas=8", strings.ToLower(r.kind)+"/"+r.name)
		s.Kubectl(t, "label", "pod", r.name+"-pod", "changed=yes") // triggers a sync of the budget
		waitForOutput(t, s, r.scaled, "get", "pdb", r.name, "-o",
			"jsonpath={.status.desiredHealthy} {.status.expectedPods}")
	}
}

// deploymentReplicaSet returns a ReplicaSet as the deployment controller would create it.
func deploymentReplicaSet(uid string) string {
	return fmt.Sprintf(`apiVersion: apps/v1
kind: ReplicaSet
metadata:
  name: dep-set
  namespace: default
  ownerReferences: [{apiVersion: apps/v1, kind: Deployment, name: dep, uid: %s, controller: true}]
spec:
  replicas: 1
  selector: {matchLabels: {app: dep}}
  template:
    metadata: {labels: {app: dep}}
    spec: {containers: [{name: c, image: example/c}]}
`, uid)
}
