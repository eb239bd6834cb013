package pair

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// localClass is a StatefulSet whose claim has no class: it gets a volume of the default class local. Each pod logs the
// starts that the volume has seen.
const localClass = `apiVersion: apps/v1
kind: StatefulSet
metadata: {name: db, namespace: default}
spec:
  serviceName: db
  selector: {matchLabels: {app: db}}
  template:
    metadata: {labels: {app: db}}
    spec:
      terminationGracePeriodSeconds: 1
      securityContext: {fsGroup: 4711}
      containers:
      - name: c
        image: busybox:1.36
        command: [sh, -c, "echo start >> /data/log; echo starts $(wc -l < /data/log); sleep 1000000"]
        volumeMounts: [{name: data, mountPath: /data}]
  volumeClaimTemplates:
  - metadata: {name: data}
    spec:
      accessModes: [ReadWriteOnce]
      resources: {requests: {storage: 64Mi}}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: huge, namespace: default}
spec:
  accessModes: [ReadWriteOnce]
  resources: {requests: {storage: 900Ti}}
---
apiVersion: v1
kind: Pod
metadata: {name: huge, namespace: default}
spec:
  containers: [{name: c, image: "busybox:1.36", command: [sleep, "1000000"], volumeMounts: [{name: v, mountPath: /v}]}]
  volumes: [{name: v, persistentVolumeClaim: {claimName: huge}}]
`

const dbClaim = "data-db-0"

// TestLocalClass runs a StatefulSet with a claim of the class local: the volume has its size, keeps its data over
// restarts of the pod and of the agent, grows, and is deleted with its claim.
func TestLocalClass(t *testing.T) {
	t.Parallel()
	p := startPair(t, pairOptions{})
	if got := p.Kubectl(t, "get", "storageclass", "local", "-o", "jsonpath={.provisioner} {.volumeBindingMode} "+
		`{.metadata.annotations.storageclass\.kubernetes\.io/is-default-class}`); got !=
		"local.berth.dev WaitForFirstConsumer true" {
		t.Errorf("StorageClass local: %s", got)
	}
	p.waitUntil("the free space of the node", func() string {
		out := p.Kubectl(t, "get", "csistoragecapacities", "-n", "kube-system", "-o",
			`jsonpath={.items[*].nodeTopology.matchLabels.topology\.local\.berth\.dev/node}`)
		if out != p.Node {
			return "got " + out
		}
		return ""
	})
	p.Apply(t, localClass)
	p.Kubectl(t, "rollout", "status", "statefulset/db", "--timeout=4m")
	volume := p.Kubectl(t, "get", "pvc", dbClaim, "-o", "jsonpath={.spec.volumeName}")
	p.requireDB("starts 1", 54<<10, 64<<10)

	// The volume is full for its pod, and only for it.
	out := p.Kubectl(t, "exec", "db-0", "--", "sh", "-c",
		"dd if=/dev/zero of=/data/fill bs=1M count=80 2>&1; rm /data/fill; stat -c 'group %g' /data")
	if !strings.Contains(out, "No space left on device") || !strings.Contains(out, "group 4711") {
		t.Errorf("filling the volume: %s", out)
	}
	p.waitUntil("a pod that no node has the space for", func() string {
		status := p.field("pod", "huge", ".status.conditions[0].message")
		if !strings.Contains(status, "did not have enough free storage") {
			return status
		}
		return ""
	})

	container := p.field("pod", "db-0", ".status.containerStatuses[0].containerID")
	if err := p.Agent.Kill9(); err != nil {
		t.Fatal(err)
	}
	if err := p.Agent.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	p.waitForField("node", p.Node, `.status.conditions[?(@.type=="Ready")].status`, "True")
	p.Kubectl(t, "delete", "pod", "huge", "--timeout=4m")
	if got := p.field("pod", "db-0", ".status.containerStatuses[0].containerID"); got != container {
		t.Errorf("container of db-0 is %s after a kill of the agent, was %s", got, container)
	}

	// Without CAP_SYS_RESOURCE, the file system grows when the pod is replaced.
	p.Kubectl(t, "patch", "pvc", dbClaim, "-p", `{"spec":{"resources":{"requests":{"storage":"128Mi"}}}}`)
	p.waitForCapacity("pv", volume, ".spec.capacity.storage")
	p.Kubectl(t, "delete", "pod", "db-0", "--timeout=4m")
	p.Kubectl(t, "rollout", "status", "statefulset/db", "--timeout=4m")
	p.requireDB("starts 2", 110<<10, 128<<10)
	p.waitForCapacity("pvc", dbClaim, ".status.capacity.storage")

	image := filepath.Join(p.Agent.RootDir, "local-volumes", volume, "image")
	var st unix.Stat_t
	if err := unix.Stat(image, &st); err != nil || st.Size != 128<<20 || st.Blocks*512 < st.Size {
		t.Errorf("image: %d bytes, %d allocated, %v", st.Size, st.Blocks*512, err)
	}
	p.Kubectl(t, "delete", "statefulset", "db", "--cascade=foreground", "--timeout=4m")
	p.Kubectl(t, "delete", "pvc", dbClaim, "huge", "--timeout=4m")
	p.Kubectl(t, "wait", "--for=delete", "pv/"+volume, "--timeout=4m")
	if _, err := os.Stat(image); !os.IsNotExist(err) {
		t.Errorf("image of the deleted volume: %v", err)
	}
	p.waitUntil("the volume to be unmounted", func() string {
		return strings.Join(append(p.csiMounts(), p.csiFiles()...), "\n")
	})
}

// waitForCapacity waits until a field is 128Mi.
func (p *Pair) waitForCapacity(kind, name, path string) {
	p.t.Helper()
	p.Kubectl(p.t, "wait", "--for=jsonpath={"+path+"}=128Mi", kind+"/"+name, "--timeout=4m")
}

// requireDB waits until the pod has logged a line, and checks the size that df shows in the pod, in KiB.
func (p *Pair) requireDB(line string, least, most int) {
	p.t.Helper()
	p.waitUntil("line "+line, func() string {
		if text := p.containerLog("db-0"); !strings.Contains(text, line+"\n") {
			return text
		}
		return ""
	})
	out := p.Kubectl(p.t, "exec", "db-0", "--", "df", "-k", "/data")
	lines := strings.Split(strings.TrimSpace(out), "\n")
	fields := strings.Fields(lines[len(lines)-1])
	if len(fields) < 2 {
		p.t.Fatalf("df: %s", out)
	}
	if size, err := strconv.Atoi(fields[1]); err != nil || size < least || size > most {
		p.t.Errorf("want a size of %d to %d KiB, df: %s", least, most, out)
	}
}
