package csi

import (
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// TestNames compares names with those that the kubelet computes, by sha256sum.
func TestNames(t *testing.T) {
	t.Parallel()
	key := volumeKey{"hostpath.csi.k8s.io", "vol-1"}
	m := New(Options{RootDir: "/var/lib/kubelet"})
	for _, row := range []struct{ got, want string }{
		{string(key.uniqueName()), "kubernetes.io/csi/hostpath.csi.k8s.io^vol-1"},
		{attachmentName(key, "node"), "csi-7e7d75765aeb00ae79cbfb4279c54b0e1b63fb3a4c83636745d589939822e93d"},
		{inlineHandle("uid", "data"), "csi-23e443c711b5dad0801c2e0a90f2be6e56dc28a2472cb2e8d6f0ead23e8765e9"},
		{m.stagedDir(key), "/var/lib/kubelet/plugins/kubernetes.io/csi/hostpath.csi.k8s.io/" +
			"d2e8363faaac7ae76def3b14091d8eb5755f6b92e9531627aeec833a8731cc49"},
		{m.podVolumeDir("uid", "pv"), "/var/lib/kubelet/pods/uid/volumes/kubernetes.io~csi/pv"},
	} {
		if row.got != row.want {
			t.Errorf("got %s, want %s", row.got, row.want)
		}
	}
}

// TestVolumeData compares vol_data.json with that of a kubelet.
func TestVolumeData(t *testing.T) {
	t.Parallel()
	r, err := newRequest(testPod("uid"), &testPod("uid").Spec.Volumes[0], testVolume("pv"))
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := writeData(dir, r.data(testNode)); err != nil {
		t.Fatal(err)
	}
	got, exists, err := readData(dir)
	if err != nil || !exists || got != r.data(testNode) {
		t.Errorf("got %+v, %v, %v", got, exists, err)
	}
	want := map[string]string{
		"attachmentID": attachmentName(r.key, testNode), "driverName": testDriver, "nodeName": testNode,
		"specVolID": "pv", "volumeHandle": "handle-pv", "volumeLifecycleMode": "Persistent",
	}
	text, err := json.Marshal(r.data(testNode))
	if err != nil {
		t.Fatal(err)
	}
	has := map[string]string{}
	if err := json.Unmarshal(text, &has); err != nil || !maps.Equal(has, want) {
		t.Errorf("got %s, want %v", text, want)
	}
	sorted, err := json.Marshal(want) // the kubelet encodes a map
	if err != nil || string(text) != string(sorted) {
		t.Errorf("got %s, want %s", text, sorted)
	}
}

func inlinePod(uid string) *corev1.Pod {
	p := testPod(uid)
	p.Spec.Volumes = []corev1.Volume{{Name: "inline", VolumeSource: corev1.VolumeSource{CSI: &corev1.CSIVolumeSource{
		Driver: testDriver, ReadOnly: new(true), VolumeAttributes: map[string]string{"a": "b"},
		NodePublishSecretRef: &corev1.LocalObjectReference{Name: "key"},
	}}}}
	return p
}

func TestPublishRequest(t *testing.T) {
	t.Parallel()
	pod := testPod("uid")
	pod.Spec.SecurityContext = &corev1.PodSecurityContext{FSGroup: new(int64(7))}
	r, err := newRequest(pod, &pod.Spec.Volumes[0], testVolume("pv"))
	if err != nil {
		t.Fatal(err)
	}
	spec := &csiDriver(func(s *storagev1.CSIDriverSpec) { s.PodInfoOnMount = new(true) }).Spec
	in := inputs{spec: spec, tokens: "T", publishContext: map[string]string{"device": "sdb"}}
	q := r.publish(in, "/stage", "/target")
	want := map[string]string{
		"color": "red", "csi.storage.k8s.io/pod.name": "pod-uid", "csi.storage.k8s.io/pod.namespace": "default",
		"csi.storage.k8s.io/pod.uid": "uid", "csi.storage.k8s.io/serviceAccount.name": "robot",
		"csi.storage.k8s.io/ephemeral": "false", tokensAttribute: "T",
	}
	if !maps.Equal(q.GetVolumeContext(), want) {
		t.Errorf("got volume context %v", q.GetVolumeContext())
	}
	if q.GetStagingTargetPath() != "/stage" || q.GetTargetPath() != "/target" || q.GetVolumeId() != "handle-pv" ||
		q.GetPublishContext()["device"] != "sdb" || q.GetReadonly() || len(q.GetSecrets()) > 0 {
		t.Errorf("got %v", q)
	}
	c := q.GetVolumeCapability()
	if c.GetMount().GetFsType() != "ext4" || c.GetMount().GetVolumeMountGroup() != "" ||
		c.GetAccessMode().GetMode() != csipb.VolumeCapability_AccessMode_SINGLE_NODE_WRITER {
		t.Errorf("got capability %v", c)
	}
	if len(r.attributes) != 1 {
		t.Errorf("the attributes of the PersistentVolume were changed: %v", r.attributes)
	}
	in.caps = capabilities{csipb.NodeServiceCapability_RPC_VOLUME_MOUNT_GROUP: true,
		csipb.NodeServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER: true}
	spec.ServiceAccountTokenInSecrets = new(true)
	q = r.publish(in, "", "/target")
	if q.GetSecrets()[tokensAttribute] != "T" || q.GetVolumeContext()[tokensAttribute] != "" {
		t.Errorf("tokens are not in secrets: %v", q)
	}
	c = q.GetVolumeCapability()
	if c.GetMount().GetVolumeMountGroup() != "7" ||
		c.GetAccessMode().GetMode() != csipb.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER {
		t.Errorf("got capability %v", c)
	}
}

func TestInlineRequest(t *testing.T) {
	t.Parallel()
	pod := inlinePod("uid")
	r, err := newRequest(pod, &pod.Spec.Volumes[0], nil)
	if err != nil {
		t.Fatal(err)
	}
	if !r.inline || !r.readOnly || r.specName != "inline" || r.key.handle != inlineHandle("uid", "inline") ||
		*r.publishSecret != (corev1.SecretReference{Namespace: "default", Name: "key"}) {
		t.Errorf("got %+v", r)
	}
	if r.attachRequired(nil) {
		t.Error("inline volumes are not attached")
	}
}

func TestFSGroupAndLifecycle(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		name   string
		change func(*request, *storagev1.CSIDriverSpec)
		caps   capabilities
		want   bool
	}{
		{name: "with a file system type and ReadWriteOnce", want: true},
		{name: "without a group", change: func(r *request, _ *storagev1.CSIDriverSpec) {
			r.pod.Spec.SecurityContext = nil
		}},
		{name: "read-only", change: func(r *request, _ *storagev1.CSIDriverSpec) { r.readOnly = true }},
		{name: "without a file system type", change: func(r *request, _ *storagev1.CSIDriverSpec) { r.fsType = "" }},
		{name: "ReadWriteMany", change: func(r *request, _ *storagev1.CSIDriverSpec) {
			r.accessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteMany}
		}},
		{name: "policy None", change: func(_ *request, s *storagev1.CSIDriverSpec) {
			s.FSGroupPolicy = new(storagev1.NoneFSGroupPolicy)
		}},
		{name: "policy File", want: true, change: func(r *request, s *storagev1.CSIDriverSpec) {
			r.fsType, s.FSGroupPolicy = "", new(storagev1.FileFSGroupPolicy)
		}},
		{name: "a driver that does it", caps: capabilities{csipb.NodeServiceCapability_RPC_VOLUME_MOUNT_GROUP: true}},
	} {
		pod := testPod("uid")
		pod.Spec.SecurityContext = &corev1.PodSecurityContext{FSGroup: new(int64(7))}
		r, err := newRequest(pod, &pod.Spec.Volumes[0], testVolume("pv"))
		if err != nil {
			t.Fatal(err)
		}
		spec := csiDriver(nil).Spec
		if row.change != nil {
			row.change(&r, &spec)
		}
		if got := r.appliesFSGroup(&spec, row.caps); got != row.want {
			t.Errorf("%s: got %v, want %v", row.name, got, row.want)
		}
	}
	persistent, inline := request{key: volumeKey{driver: "d"}}, request{inline: true, key: volumeKey{driver: "d"}}
	if persistent.checkLifecycle(nil) != nil || inline.checkLifecycle(nil) == nil {
		t.Error("without a CSIDriver object, only persistent volumes are supported")
	}
	spec := &storagev1.CSIDriverSpec{VolumeLifecycleModes: []storagev1.VolumeLifecycleMode{"Ephemeral"}}
	want := `volume mode "Persistent" not supported by driver d (only supports ["Ephemeral"])`
	if err := persistent.checkLifecycle(spec); err == nil || err.Error() != want || inline.checkLifecycle(spec) != nil {
		t.Errorf("got %v", err)
	}
}

func TestDecideAttach(t *testing.T) {
	t.Parallel()
	attached := func(change func(*storagev1.VolumeAttachment)) *storagev1.VolumeAttachment {
		a := &storagev1.VolumeAttachment{}
		a.Status.Attached, a.Status.AttachmentMetadata = true, map[string]string{"device": "sdb"}
		if change != nil {
			change(a)
		}
		return a
	}
	failed := attached(func(a *storagev1.VolumeAttachment) {
		a.Status.Attached, a.Status.AttachError = false, &storagev1.VolumeError{Message: "no disk"}
	})
	deleted := attached(func(a *storagev1.VolumeAttachment) {
		a.DeletionTimestamp = &metav1.Time{Time: time.Unix(1, 0)}
	})
	for _, row := range []struct {
		name string
		in   attachInputs
		want string // done, or a part of wait or of the error
	}{
		{"not reported in use", attachInputs{attached: true, attachment: attached(nil)}, "in use"},
		{"not in the status of the Node", attachInputs{inUse: true, attachment: attached(nil)}, "attached to the node"},
		{"attached", attachInputs{inUse: true, attached: true, attachment: attached(nil)}, "done"},
		{"failed", attachInputs{inUse: true, attachment: failed}, "no disk"},
		{"being deleted", attachInputs{inUse: true, attached: true, attachment: deleted}, "is being deleted"},
		{"unreadable", attachInputs{inUse: true, attached: true, err: errors.New("forbidden")}, "forbidden"},
		{"missing", attachInputs{inUse: true, attached: true}, "to have a VolumeAttachment"},
	} {
		d := decideAttach(row.in)
		got := d.wait
		if d.done {
			got = "done"
		} else if d.err != nil {
			got = d.err.Error()
		}
		if !strings.Contains(got, row.want) || d.done && d.context["device"] != "sdb" {
			t.Errorf("%s: got %q, want %q", row.name, got, row.want)
		}
	}
}

func TestCSINodeDrivers(t *testing.T) {
	t.Parallel()
	info := nodeInfo{ID: "new", MaxVolumes: 3, Topology: map[string]string{"zone": "a", "host": "b"}}
	has := []storagev1.CSINodeDriver{
		{Name: "a", NodeID: "old"}, {Name: "gone", NodeID: "x"}, {Name: "other", NodeID: "y"},
	}
	got, changed := csiNodeDrivers(has, map[string]nodeInfo{"a": info, "z": {ID: "z"}}, map[string]bool{"gone": true})
	var names []string
	for _, d := range got {
		names = append(names, d.Name+"="+d.NodeID)
	}
	if !changed || !slices.Equal(names, []string{"a=new", "other=y", "z=z"}) {
		t.Errorf("got %v, changed is %v", names, changed)
	}
	if !slices.Equal(got[0].TopologyKeys, []string{"host", "zone"}) || *got[0].Allocatable.Count != 3 {
		t.Errorf("got %+v", got[0])
	}
	if again, changed := csiNodeDrivers(got, map[string]nodeInfo{"a": info, "z": {ID: "z"}}, nil); changed {
		t.Errorf("a second pass changes %v to %v", got, again)
	}
}

func TestNodePatch(t *testing.T) {
	t.Parallel()
	drivers := map[string]nodeInfo{"a": {ID: "1", Topology: map[string]string{"zone": "a"}}}
	node := nodeState{known: true, uid: types.UID("u"), annotation: `{"gone":"2"}`, labels: map[string]string{"x": "y"}}
	patch, err := nodePatch(node, drivers, map[string]bool{"gone": true})
	if err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(patch)
	if err != nil {
		t.Fatal(err)
	}
	want := `{"metadata":{"annotations":{"csi.volume.kubernetes.io/nodeid":"{\"a\":\"1\"}"},"labels":{"zone":"a"}}}`
	if string(text) != want {
		t.Errorf("got %s, want %s", text, want)
	}
	node.annotation, node.labels["zone"] = `{"a":"1"}`, "a"
	if patch, err := nodePatch(node, drivers, nil); err != nil || patch != nil {
		t.Errorf("got %v, %v, want no change", patch, err)
	}
	patch, err = nodePatch(node, nil, map[string]bool{"a": true})
	if text, _ := json.Marshal(patch); err != nil || string(text) !=
		`{"metadata":{"annotations":{"csi.volume.kubernetes.io/nodeid":null}}}` {
		t.Errorf("got %s, %v", text, err)
	}
	if err := topologyCollision(map[string]string{"zone": "b"}, drivers["a"]); err == nil ||
		!strings.Contains(err.Error(), `driver reported "zone":"a" but existing label is "zone":"b"`) {
		t.Errorf("got %v", err)
	}
}
