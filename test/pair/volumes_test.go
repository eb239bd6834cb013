package pair

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"berth/test/images"
)

// localVolumes are two local volumes of a node, and a StatefulSet whose claims get them.
const localVolumes = `apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: disks}
provisioner: kubernetes.io/no-provisioner
volumeBindingMode: WaitForFirstConsumer
---
apiVersion: v1
kind: PersistentVolume
metadata: {name: disk-0}
spec:
  capacity: {storage: 1Gi}
  accessModes: [ReadWriteOnce]
  storageClassName: disks
  persistentVolumeReclaimPolicy: Retain
  local: {path: %[2]s/disk-0}
  nodeAffinity:
    required: {nodeSelectorTerms: [{matchExpressions: [{key: kubernetes.io/hostname, operator: In, values: [%[1]s]}]}]}
---
apiVersion: v1
kind: PersistentVolume
metadata: {name: disk-1}
spec:
  capacity: {storage: 1Gi}
  accessModes: [ReadWriteOnce]
  storageClassName: disks
  persistentVolumeReclaimPolicy: Retain
  local: {path: %[2]s/disk-1}
  nodeAffinity:
    required: {nodeSelectorTerms: [{matchExpressions: [{key: kubernetes.io/hostname, operator: In, values: [%[1]s]}]}]}
---
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: db, namespace: default}
spec:
  replicas: 2
  serviceName: db
  selector: {matchLabels: {app: db}}
  template:
    metadata: {labels: {app: db}}
    spec:
      terminationGracePeriodSeconds: 1
      containers:
      - name: c
        image: %[3]q
        args: [append, /data/log, started, ",", cat, /data/log, ",", sleep]
        volumeMounts: [{name: data, mountPath: /data}]
  volumeClaimTemplates:
  - metadata: {name: data}
    spec:
      accessModes: [ReadWriteOnce]
      storageClassName: disks
      resources: {requests: {storage: 500Mi}}
`

// TestStatefulSetKeepsItsVolumes runs a StatefulSet with claims on local volumes. A replaced pod has the data of its
// predecessor. A claim that is deleted stays until its pod is gone, and its volume is released with the data.
func TestStatefulSetKeepsItsVolumes(t *testing.T) {
	t.Parallel()
	p := startPair(t, pairOptions{})
	disks := filepath.Join(filepath.Dir(p.Agent.RootDir), "disks")
	for _, name := range []string{"disk-0", "disk-1"} {
		if err := os.MkdirAll(filepath.Join(disks, name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	p.Apply(t, fmt.Sprintf(localVolumes, p.Node, disks, images.TestboxRef))
	p.Kubectl(t, "rollout", "status", "statefulset/db", "--timeout=4m")
	volumeOf := func(claim string) string {
		return p.Kubectl(t, "get", "pvc", claim, "-o", "jsonpath={.spec.volumeName}")
	}
	first, second := volumeOf("data-db-0"), volumeOf("data-db-1")
	if first == second || !strings.HasPrefix(first, "disk-") || !strings.HasPrefix(second, "disk-") {
		t.Fatalf("claims have volumes %q and %q, want the two disks", first, second)
	}
	if out := p.Kubectl(t, "get", "pvc", "-o", "jsonpath={.items[*].status.phase}"); out != "Bound Bound" {
		t.Errorf("claims are %s", out)
	}
	if out := p.Kubectl(t, "get", "pv", "-o", "jsonpath={.items[*].status.phase}"); out != "Bound Bound" {
		t.Errorf("volumes are %s", out)
	}

	p.Kubectl(t, "delete", "pod", "db-0", "--timeout=4m")
	p.Kubectl(t, "rollout", "status", "statefulset/db", "--timeout=4m")
	p.waitUntil("the line of the first pod in the log of the second", func() string {
		if text := p.containerLog("db-0"); strings.Count(text, "started") != 2 {
			return text
		}
		return ""
	})

	p.Kubectl(t, "delete", "pvc", "data-db-1", "--wait=false")
	if out := p.Kubectl(t, "get", "pvc", "data-db-1"); !strings.Contains(out, "Terminating") {
		t.Errorf("got claim %s, want Terminating", out)
	}
	if out := p.Kubectl(t, "get", "pv", second, "-o", "jsonpath={.status.phase}"); out != "Bound" {
		t.Errorf("volume of a claim in use is %s", out)
	}
	p.Kubectl(t, "delete", "statefulset", "db", "--cascade=foreground", "--timeout=4m")
	p.Kubectl(t, "wait", "--for=delete", "pvc/data-db-1", "--timeout=4m")
	p.Kubectl(t, "wait", "--for=jsonpath={.status.phase}=Released", "pv/"+second, "--timeout=4m")
	if text, err := os.ReadFile(filepath.Join(disks, second, "log")); err != nil || !strings.Contains(string(text),
		"started") {
		t.Errorf("the released volume has log %q, %v", text, err)
	}
	if out := p.Kubectl(t, "get", "pvc", "data-db-0", "-o", "jsonpath={.status.phase}"); out != "Bound" {
		t.Errorf("claim of the deleted StatefulSet is %s, want Bound", out)
	}
}
