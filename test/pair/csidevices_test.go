package pair

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"berth/test/hosts"
	"berth/test/images"
)

// sizedVolume returns a PersistentVolume of the driver with a size of 16 MiB and its claim.
func sizedVolume(name, mode string) string {
	return fmt.Sprintf(`---
apiVersion: v1
kind: PersistentVolume
metadata: {name: pv-%[1]s}
spec:
  capacity: {storage: 16Mi}
  accessModes: [ReadWriteOnce]
  storageClassName: ""
  volumeMode: %[2]s
  persistentVolumeReclaimPolicy: Retain
  csi: {driver: csi.example.com, volumeHandle: handle-%[1]s, volumeAttributes: {size: "16777216"}}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: %[1]s, namespace: default}
spec:
  accessModes: [ReadWriteOnce]
  storageClassName: ""
  volumeMode: %[2]s
  volumeName: pv-%[1]s
  resources: {requests: {storage: 16Mi}}
`, name, mode)
}

// blockPod returns a pod that uses the claim "block": by devices or mounts as the spec of its container says.
func blockPod(name, use, args string) string {
	return fmt.Sprintf(`---
apiVersion: v1
kind: Pod
metadata: {name: %s, namespace: default}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - name: c
    image: %q
    args: [%s]
    %s
  volumes:
  - name: data
    persistentVolumeClaim: {claimName: block}
`, name, images.TestboxRef, args, use)
}

const useDevice = "volumeDevices: [{name: data, devicePath: /dev/data}]"

// startDevicePods starts a pod with a raw block volume and one with a file system of a size. A controller then expands
// both volumes.
func (p *Pair) startDevicePods() {
	p.t.Helper()
	p.Apply(p.t, sizedVolume("block", "Block")+sizedVolume("sized", "Filesystem")+csiPod("sized", "sized")+
		blockPod("block", useDevice, "write, /dev/data, written by the pod, ',', stat, /dev/data, ',', sleep"))
	p.waitForField("pod", "sized", readyStatus, "True")
	p.waitForField("pod", "block", readyStatus, "True")
	p.waitUntil("the device in the container", func() string {
		if text := p.containerLog("block"); !strings.Contains(text, "/dev/data D") {
			return text
		}
		return ""
	})
	devices := filepath.Join(p.Agent.RootDir, "plugins/kubernetes.io/csi/volumeDevices")
	uid := p.field("pod", "block", ".metadata.uid")
	for _, path := range []string{"staging/pv-block", "publish/pv-block/" + uid, "pv-block/dev/" + uid,
		"pv-block/data/vol_data.json"} {
		if _, err := os.Stat(filepath.Join(devices, path)); err != nil {
			p.t.Error(err)
		}
	}
	p.checkDevice(16 << 20)
	p.Apply(p.t, blockPod("mounts", "volumeMounts: [{name: data, mountPath: /data}]", "sleep"))
	p.waitForEvent("mounts", "FailedMount", "volume data has volumeMode Block, but is specified in volumeMounts")
	for _, name := range []string{"block", "sized"} {
		p.expand(name, "32Mi")
	}
}

// checkDevice checks the size of the device of pod "block", and that it has the data of the pod.
func (p *Pair) checkDevice(want int64) {
	p.t.Helper()
	path := filepath.Join(p.Agent.RootDir, "plugins/kubernetes.io/csi/volumeDevices/pv-block/dev",
		p.field("pod", "block", ".metadata.uid"))
	f, err := os.Open(path)
	if err != nil {
		p.t.Fatal(err)
	}
	defer f.Close()
	text := make([]byte, len("written by the pod"))
	if _, err := f.Read(text); err != nil || string(text) != "written by the pod" {
		p.t.Errorf("the device has %q, %v", text, err)
	}
	if size, err := f.Seek(0, io.SeekEnd); err != nil || size != want {
		p.t.Errorf("the device has %d bytes, %v, want %d", size, err, want)
	}
}

// waitForEvent waits for an event of a pod that contains a text.
func (p *Pair) waitForEvent(pod, reason, text string) {
	p.t.Helper()
	p.waitUntil("event "+reason+" of pod "+pod, func() string {
		list, err := p.Client.CoreV1().Events("default").List(p.t.Context(), metav1.ListOptions{
			FieldSelector: "involvedObject.name=" + pod + ",reason=" + reason})
		if err != nil {
			return err.Error()
		}
		if !slices.ContainsFunc(list.Items, func(e corev1.Event) bool { return strings.Contains(e.Message, text) }) {
			return fmt.Sprintf("got %d events", len(list.Items))
		}
		return ""
	})
}

// expand does what the resizer of a driver does after it has expanded a volume.
func (p *Pair) expand(name, size string) {
	p.t.Helper()
	ctx, core, q := p.t.Context(), p.Client.CoreV1(), resource.MustParse(size)
	pv, err := core.PersistentVolumes().Get(ctx, "pv-"+name, metav1.GetOptions{})
	if err == nil {
		pv.Spec.Capacity[corev1.ResourceStorage] = q
		_, err = core.PersistentVolumes().Update(ctx, pv, metav1.UpdateOptions{})
	}
	if err != nil {
		p.t.Fatal(err)
	}
	p.waitUntil("the status of claim "+name, func() string {
		claim, err := core.PersistentVolumeClaims("default").Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err.Error()
		}
		claim.Status.AllocatedResources = corev1.ResourceList{corev1.ResourceStorage: q}
		claim.Status.AllocatedResourceStatuses = map[corev1.ResourceName]corev1.ClaimResourceStatus{
			corev1.ResourceStorage: corev1.PersistentVolumeClaimNodeResizePending}
		claim.Status.Conditions = []corev1.PersistentVolumeClaimCondition{
			{Type: corev1.PersistentVolumeClaimFileSystemResizePending, Status: corev1.ConditionTrue,
				LastTransitionTime: metav1.NewTime(time.Now())}}
		_, err = core.PersistentVolumeClaims("default").UpdateStatus(ctx, claim, metav1.UpdateOptions{})
		if err != nil {
			return err.Error()
		}
		return ""
	})
}

// checkExpansion checks that the node has expanded both volumes while their pods run, with one call each, and that the
// device has the data of the pod.
func (p *Pair) checkExpansion(d *hosts.CSIDriver) {
	p.t.Helper()
	for _, name := range []string{"block", "sized"} {
		p.waitUntil("the size of claim "+name, func() string {
			claim, err := p.Client.CoreV1().PersistentVolumeClaims("default").Get(p.t.Context(), name, metav1.GetOptions{})
			if err != nil {
				return err.Error()
			}
			s := claim.Status
			if s.Capacity.Storage().String() != "32Mi" || len(s.Conditions)+len(s.AllocatedResourceStatuses) > 0 {
				return fmt.Sprintf("got status %+v", s)
			}
			return ""
		})
		message := fmt.Sprintf(`MountVolume.NodeExpandVolume succeeded for volume "pv-%s" %s`, name, p.Node)
		p.waitForEvent(name, "FileSystemResizeSuccessful", message) // of the pod and of the claim with the same name
		if got := d.Calls("NodeExpandVolume", "handle-"+name); got != 1 {
			p.t.Errorf("got %d calls of NodeExpandVolume for %s, want 1", got, name)
		}
		if got := p.field("pod", name, ".status.containerStatuses[0].restartCount"); got != "0" {
			p.t.Errorf("pod %s has %s restarts", name, got)
		}
	}
	var st unix.Statfs_t
	path := filepath.Join(p.Agent.RootDir, "pods", p.field("pod", "sized", ".metadata.uid"),
		"volumes/kubernetes.io~csi/pv-sized/mount")
	if err := unix.Statfs(path, &st); err != nil || int64(st.Blocks)*st.Bsize != 32<<20 {
		p.t.Errorf("the file system has %d bytes, %v", int64(st.Blocks)*st.Bsize, err)
	}
	p.checkDevice(32 << 20)
}
