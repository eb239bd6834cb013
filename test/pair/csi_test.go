package pair

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"berth/internal/localvolumes"
	"berth/test/hosts"
	"berth/test/images"
)

const csiName = "csi.example.com"

// csiVolumes are the CSIDriver object of the driver, and volumes with their claims.
const csiVolumes = `apiVersion: storage.k8s.io/v1
kind: CSIDriver
metadata: {name: csi.example.com}
spec: {podInfoOnMount: true, fsGroupPolicy: File, volumeLifecycleModes: [Persistent, Ephemeral]}
`

// csiVolume returns a PersistentVolume of the driver and its claim.
func csiVolume(name string) string {
	return fmt.Sprintf(`---
apiVersion: v1
kind: PersistentVolume
metadata: {name: pv-%[1]s}
spec:
  capacity: {storage: 1Gi}
  accessModes: [ReadWriteOnce]
  storageClassName: ""
  persistentVolumeReclaimPolicy: Retain
  csi: {driver: csi.example.com, volumeHandle: handle-%[1]s}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: %[1]s, namespace: default}
spec:
  accessModes: [ReadWriteOnce]
  storageClassName: ""
  volumeName: pv-%[1]s
  resources: {requests: {storage: 1Gi}}
`, name)
}

// csiPod returns a pod that writes to the volume of a claim and reads an inline volume.
func csiPod(name, claim string) string {
	return fmt.Sprintf(`---
apiVersion: v1
kind: Pod
metadata: {name: %s, namespace: default}
spec:
  terminationGracePeriodSeconds: 1
  securityContext: {fsGroup: 4711}
  containers:
  - name: c
    image: %q
    args: [append, /data/log, started, ",", cat, /data/log, ",", cat, /inline/text, ",", sleep]
    volumeMounts: [{name: data, mountPath: /data}, {name: inline, mountPath: /inline}]
  volumes:
  - name: data
    persistentVolumeClaim: {claimName: %s}
  - name: inline
    csi: {driver: csi.example.com, readOnly: true, volumeAttributes: {text: hello}}
`, name, images.TestboxRef, claim)
}

// startCSIDriver starts the driver, which is killed at the end of the test.
func (p *Pair) startCSIDriver() *hosts.CSIDriver {
	p.t.Helper()
	d, err := p.Agent.StartCSIDriver(p.t.Context(), csiName)
	if err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() {
		if p.t.Failed() {
			p.t.Logf("log of the driver:\n%s", d.Log())
		}
		d.Kill()
	})
	return d
}

// startAttacher attaches and detaches volumes as the external-attacher of a driver does, until the end of the test.
func (p *Pair) startAttacher() {
	p.t.Helper()
	ctx, cancel := context.WithCancel(p.t.Context())
	done := make(chan error, 1)
	go func() {
		for {
			err := p.attachVolumes(ctx)
			select {
			case <-ctx.Done():
				done <- nil
				return
			case <-time.After(100 * time.Millisecond):
			}
			if err != nil && !apierrors.IsConflict(err) && !apierrors.IsNotFound(err) {
				done <- err
				return
			}
		}
	}()
	p.t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			p.t.Errorf("attacher: %v", err)
		}
	})
}

// attachVolumes does what is due for the VolumeAttachments.
func (p *Pair) attachVolumes(ctx context.Context) error {
	all := p.Client.StorageV1().VolumeAttachments()
	list, err := all.List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	const finalizer = "external-attacher/csi-example-com"
	for i := range list.Items {
		a := &list.Items[i]
		switch {
		case a.DeletionTimestamp != nil:
			a.Finalizers = nil
			_, err = all.Update(ctx, a, metav1.UpdateOptions{})
		case len(a.Finalizers) == 0:
			a.Finalizers = []string{finalizer}
			_, err = all.Update(ctx, a, metav1.UpdateOptions{})
		case !a.Status.Attached:
			a.Status.Attached, a.Status.AttachmentMetadata = true, map[string]string{"device": "sdb"}
			_, err = all.UpdateStatus(ctx, a, metav1.UpdateOptions{})
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// attachments returns the names of the volumes that are attached, and what the Node reports.
func (p *Pair) attachments() string {
	p.t.Helper()
	list, err := p.Client.StorageV1().VolumeAttachments().List(p.t.Context(), metav1.ListOptions{})
	if err != nil {
		p.t.Fatal(err)
	}
	var out []string
	for _, a := range list.Items {
		out = append(out, *a.Spec.Source.PersistentVolumeName)
	}
	slices.Sort(out)
	return strings.Join(out, " ") + "; " + p.field("node", p.Node, ".status.volumesAttached[*].name")
}

// waitForNodeID waits until the Node has this ID in the driver.
func (p *Pair) waitForNodeID(want string) {
	p.t.Helper()
	p.waitUntil("node ID in the driver", func() string {
		text := p.field("node", p.Node, `.metadata.annotations.csi\.volume\.kubernetes\.io/nodeid`)
		ids := map[string]string{}
		if err := json.Unmarshal([]byte(text), &ids); text != "" && err != nil || ids[csiName] != want {
			return "got " + text
		}
		return ""
	})
}

// waitForCSINode waits until the CSINode has these drivers besides the built-in one, in JSON.
func (p *Pair) waitForCSINode(want string) {
	p.t.Helper()
	p.waitUntil("drivers of the CSINode", func() string {
		n, err := p.Client.StorageV1().CSINodes().Get(p.t.Context(), p.Node, metav1.GetOptions{})
		if err != nil {
			return err.Error()
		}
		drivers := slices.DeleteFunc(append([]storagev1.CSINodeDriver{}, n.Spec.Drivers...),
			func(d storagev1.CSINodeDriver) bool { return d.Name == localvolumes.DriverName })
		if got, err := json.Marshal(drivers); err != nil ||
			string(got) != want {
			return fmt.Sprintf("got %s, %v", got, err)
		}
		return ""
	})
}

// csiMounts returns the mounts of CSI volumes.
func (p *Pair) csiMounts() (out []string) {
	p.t.Helper()
	text, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		p.t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		path := strings.Fields(line)[4]
		if strings.HasPrefix(path, p.Agent.RootDir+"/") && (strings.Contains(path, "kubernetes.io~csi") ||
			strings.Contains(path, "kubernetes.io/csi")) {
			out = append(out, strings.TrimPrefix(path, p.Agent.RootDir))
		}
	}
	return out
}

// csiFiles returns what is left of CSI volumes on the host.
func (p *Pair) csiFiles() (out []string) {
	p.t.Helper()
	for _, pattern := range []string{"plugins/kubernetes.io/csi/" + csiName + "/*",
		"plugins/kubernetes.io/csi/volumeDevices/pv-*", "plugins/kubernetes.io/csi/volumeDevices/*/pv-*",
		"pods/*/volumes/kubernetes.io~csi/*", "pods/*/volumeDevices/kubernetes.io~csi/*"} {
		found, err := filepath.Glob(filepath.Join(p.Agent.RootDir, pattern))
		if err != nil {
			p.t.Fatal(err)
		}
		out = append(out, found...)
	}
	return out
}

// TestCSIVolumes runs pods with volumes of a CSI driver. A restart of the agent mounts nothing again, a call that hangs
// delays only its pod, and after the deletion of the pods nothing is left.
func TestCSIVolumes(t *testing.T) {
	t.Parallel()
	p := startPair(t, pairOptions{})
	d := p.startCSIDriver()
	p.waitForCSINode(`[{"name":"csi.example.com","nodeID":"id-of-node",` +
		`"topologyKeys":["topology.csi.example.com/node"],"allocatable":{"count":7}}]`)
	p.waitForField("node", p.Node, `.metadata.labels.topology\.csi\.example\.com/node`, "id-of-node")
	p.waitForNodeID("id-of-node")

	p.startAttacher()

	p.Apply(t, csiVolumes+csiVolume("one")+csiPod("one", "one"))
	p.waitForField("pod", "one", readyStatus, "True")
	p.waitUntil("the content of both volumes in the log", func() string {
		text := p.containerLog("one")
		if !strings.Contains(text, "started") || !strings.Contains(text, "hello for one") {
			return text
		}
		return ""
	})
	if got, want := p.attachments(), "pv-one; kubernetes.io/csi/csi.example.com^handle-one"; got != want {
		t.Errorf("attached volumes are %q, want %q", got, want)
	}
	uid := p.field("pod", "one", ".metadata.uid")
	p.checkLayout(uid, d)
	p.startDevicePods()
	p.killAgent(uid, d)
	p.hangingDriver(d)
	p.checkExpansion(d)

	p.Kubectl(t, "delete", "pods", "--all", "--timeout=4m")
	p.waitUntil("all CSI volumes to be unmounted and removed", func() string {
		if left := append(p.csiMounts(), p.csiFiles()...); len(left) > 0 {
			return strings.Join(left, "\n")
		}
		return ""
	})
	p.waitUntil("all volumes to be detached", func() string {
		if got := p.attachments(); got != "; " {
			return got
		}
		return ""
	})
	if got := d.Calls("NodeUnstageVolume", "handle-one"); got != 1 {
		t.Errorf("got %d calls of NodeUnstageVolume, want 1", got)
	}
	if err := d.Stop(); err != nil {
		t.Fatal(err)
	}
	p.waitForCSINode("[]")
	p.waitForNodeID("")
}

// checkLayout checks that the volumes of pod "one" have the layout of the kubelet, and the group of the pod.
func (p *Pair) checkLayout(uid string, d *hosts.CSIDriver) {
	p.t.Helper()
	dir := filepath.Join(p.Agent.RootDir, "pods", uid, "volumes", "kubernetes.io~csi")
	text, err := os.ReadFile(filepath.Join(dir, "pv-one", "vol_data.json"))
	if err != nil {
		p.t.Fatal(err)
	}
	var data map[string]string
	if err := json.Unmarshal(text, &data); err != nil {
		p.t.Fatal(err)
	}
	if data["driverName"] != csiName || data["volumeHandle"] != "handle-one" || data["specVolID"] != "pv-one" ||
		data["volumeLifecycleMode"] != "Persistent" || data["nodeName"] != p.Node ||
		!strings.HasPrefix(data["attachmentID"], "csi-") {
		p.t.Errorf("got vol_data.json %s", text)
	}
	if got := strings.Join(p.csiMounts(), " "); strings.Count(got, "/globalmount") != 1 ||
		!strings.Contains(got, "/pv-one/mount") || !strings.Contains(got, "/inline/mount") {
		p.t.Errorf("got mounts %s", got)
	}
	var st unix.Stat_t
	if err := unix.Stat(filepath.Join(d.DataDir, "handle-one"), &st); err != nil {
		p.t.Fatal(err)
	}
	if st.Gid != 4711 {
		p.t.Errorf("the volume has group %d, want the fsGroup", st.Gid)
	}
}

// killAgent kills the agent. The next one calls the driver for no volume, and the pod keeps its container.
func (p *Pair) killAgent(uid string, d *hosts.CSIDriver) {
	p.t.Helper()
	const container = ".status.containerStatuses[0].containerID"
	id, mounts := p.field("pod", "one", container), p.csiMounts()
	if err := p.Agent.Kill9(); err != nil {
		p.t.Fatal(err)
	}
	before := strings.Count(d.Log(), "registered true")
	if err := p.Agent.Start(p.t.Context()); err != nil {
		p.t.Fatal(err)
	}
	if err := p.Agent.WaitReady(p.t.Context()); err != nil {
		p.t.Fatal(err)
	}
	p.waitUntil("the driver to be registered with the new agent", func() string {
		if strings.Count(d.Log(), "registered true") == before {
			return d.Log()
		}
		return ""
	})
	p.Apply(p.t, p.pod("other", "", "sleep"))
	p.waitForField("pod", "other", readyStatus, "True")
	p.waitForField("pod", "one", readyStatus, "True")
	if now := p.field("pod", "one", container); now != id {
		p.t.Errorf("got container %s, want %s", now, id)
	}
	if now := p.csiMounts(); strings.Join(now, " ") != strings.Join(mounts, " ") {
		p.t.Errorf("mounts were %q and are %q", mounts, now)
	}
	for _, method := range []string{"NodeStageVolume", "NodePublishVolume"} {
		if got := d.Calls(method, "handle-one"); got != 1 {
			p.t.Errorf("got %d calls of %s for pod %s, want 1", got, method, uid)
		}
	}
}

// hangingDriver starts a pod whose driver does not respond: other pods and a restart of the agent are not delayed, and
// berth why names the driver and its call.
func (p *Pair) hangingDriver(d *hosts.CSIDriver) {
	p.t.Helper()
	if err := d.Send("hang NodeStageVolume"); err != nil {
		p.t.Fatal(err)
	}
	p.Apply(p.t, csiVolume("two")+csiPod("two", "two"))
	p.waitUntil("berth why to name the driver and its call", func() string {
		out, err := p.Agent.Command(p.t.Context(), "why", "two").CombinedOutput()
		if err != nil || !strings.Contains(string(out), "NodeStageVolume of CSI driver "+csiName) {
			return fmt.Sprintf("%s%v", out, err)
		}
		return ""
	})
	p.Apply(p.t, p.pod("third", "", "sleep"))
	p.waitForField("pod", "third", readyStatus, "True")
	start := time.Now()
	if err := p.Agent.Restart(p.t.Context()); err != nil {
		p.t.Fatal(err)
	}
	if took := time.Since(start); took > 30*time.Second {
		p.t.Errorf("the restart took %s", took)
	}
	if err := d.Send("ok"); err != nil {
		p.t.Fatal(err)
	}
	p.waitForField("pod", "two", readyStatus, "True")
}
