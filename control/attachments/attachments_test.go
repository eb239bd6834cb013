package attachments

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func testAttachment(node string) *storagev1.VolumeAttachment {
	name := "pv"
	a := &storagev1.VolumeAttachment{ObjectMeta: metav1.ObjectMeta{Name: Name(testDriver, testHandle, node)}}
	a.Spec = storagev1.VolumeAttachmentSpec{Attacher: testDriver, NodeName: node,
		Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: &name}}
	a.Status.Attached = true
	return a
}

func testNode(name string, isReady bool) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name,
		Annotations: map[string]string{ManagedAnnotation: "true"}}}
	status := corev1.ConditionFalse
	if isReady {
		status = corev1.ConditionTrue
	}
	n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: status}}
	return n
}

func testView(pods []*corev1.Pod, nodes ...*corev1.Node) View {
	v := View{Now: time.Unix(1000, 0), Required: true, Pods: pods, Nodes: map[string]*corev1.Node{},
		Volume: &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv"}}}
	v.Volume.Spec.CSI = &corev1.CSIPersistentVolumeSource{Driver: testDriver, VolumeHandle: testHandle}
	v.Volume.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}
	for _, n := range nodes {
		v.Nodes[n.Name] = n
	}
	return v
}

func testPod(namespace, name, node string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec: corev1.PodSpec{NodeName: node}}
}

// Agents and drivers compute the name too: it is "csi-" and the SHA-256 sum of handle, driver and node.
func TestNames(t *testing.T) {
	t.Parallel()
	const want = "csi-fdef298eb16db6fa42906ef1ff09a93a7f3028f8290cc9d71628ff91c237bfa7"
	if name := Name("driver", "handle", "node"); name != want {
		t.Errorf("name %s, want %s", name, want)
	}
	a := testAttachment("n")
	if !has(a, VolumeName(testDriver, testHandle)) || has(a, VolumeName(testDriver, "other")) ||
		has(a, "kubernetes.io/nfs/x") {
		t.Error("a volume in the status of a node is not that of its attachment")
	}
	if !Managed(a) {
		t.Error("an attachment of the controller is not managed")
	}
	a.Name = "mine"
	if Managed(a) {
		t.Error("an attachment of a user is managed")
	}
}

func TestExclusiveVolumeWaitsForOtherNode(t *testing.T) {
	t.Parallel()
	v := testView([]*corev1.Pod{testPod("a", "old", "n1"), testPod("a", "new", "n2"), testPod("b", "secret", "n1")},
		testNode("n1", true), testNode("n2", true))
	v.Attachments = []Attachment{{VolumeAttachment: testAttachment("n1")}}
	d := Decide(v)
	if d.Create != nil || len(d.Delete) > 0 || len(d.Waiting) != 1 {
		t.Fatalf("decision %+v", d)
	}
	const want = `Waiting for detach for volume "pv" Volume is already used by pod(s) old and 1 pod(s) in different ` +
		`namespaces`
	if got := d.Waiting[0]; got.Pod.Name != "new" || got.Message != want {
		t.Errorf("event of %s: %s", got.Pod.Name, got.Message)
	}
	v.Volume.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteMany}
	if d = Decide(v); d.Create == nil || d.Create.Spec.NodeName != "n2" {
		t.Errorf("decision for a shared volume: %+v", d)
	}
}

func TestUnusedVolumeIsDetached(t *testing.T) {
	t.Parallel()
	mounted := func(n *corev1.Node) *corev1.Node {
		n.Status.VolumesInUse = []corev1.UniqueVolumeName{VolumeName(testDriver, testHandle)}
		return n
	}
	reported := func(n *corev1.Node) *corev1.Node {
		n.Status.VolumesAttached = []corev1.AttachedVolume{{Name: VolumeName(testDriver, testHandle)}}
		return n
	}
	outOfService := func(n *corev1.Node) *corev1.Node {
		n.Spec.Taints = []corev1.Taint{{Key: corev1.TaintNodeOutOfService, Effect: corev1.TaintEffectNoExecute}}
		return n
	}
	for name, tc := range map[string]struct {
		node   *corev1.Node
		unused time.Duration
		want   string // "" is no deletion, "safe" one that is not forced
		wake   time.Duration
	}{
		"not in use":              {testNode("n1", true), 0, "safe", 0},
		"reported":                {reported(testNode("n1", true)), 0, "", 0},
		"mounted":                 {mounted(testNode("n1", true)), time.Hour, "", 0},
		"mounted, not ready":      {mounted(testNode("n1", false)), time.Minute, "", 5 * time.Minute},
		"mounted, not ready long": {mounted(testNode("n1", false)), 6 * time.Minute, ForcedByTimeout, 0},
		"out of service":          {outOfService(mounted(testNode("n1", false))), 0, ForcedByOutOfService, 0},
		"node is gone":            {nil, time.Minute, "", 5 * time.Minute},
		"node is gone long":       {nil, 7 * time.Minute, ForcedByTimeout, 0},
	} {
		v := testView(nil)
		if tc.node != nil {
			v = testView(nil, tc.node)
		}
		a := testAttachment("n1")
		v.Attachments = []Attachment{{VolumeAttachment: a}}
		v.Unused = map[string]time.Time{a.Name: v.Now.Add(-tc.unused)}
		d := Decide(v)
		got := ""
		if len(d.Delete) > 0 {
			if got = d.Delete[0].Forced; got == "" {
				got = "safe"
			}
		}
		if got != tc.want || d.Wake != tc.wake {
			t.Errorf("%s: deletion %q, want %q; wake %s, want %s", name, got, tc.want, d.Wake, tc.wake)
		}
	}
}

func TestPodsThatUseVolumes(t *testing.T) {
	t.Parallel()
	running := corev1.ContainerStatus{State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}
	for name, tc := range map[string]struct {
		change func(*corev1.Pod)
		want   bool
	}{
		"running":      {func(*corev1.Pod) {}, true},
		"without node": {func(p *corev1.Pod) { p.Spec.NodeName = "" }, false},
		"succeeded":    {func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded }, false},
		"terminating": {func(p *corev1.Pod) {
			p.DeletionTimestamp, p.Status.ContainerStatuses = &metav1.Time{}, []corev1.ContainerStatus{running}
		}, true},
		"terminated": {func(p *corev1.Pod) {
			p.DeletionTimestamp, p.Status.ContainerStatuses = &metav1.Time{}, []corev1.ContainerStatus{{}}
		}, false},
	} {
		pod := testPod("default", "p", "n")
		tc.change(pod)
		if got := Uses(pod); got != tc.want {
			t.Errorf("%s: got %v, want %v", name, got, tc.want)
		}
	}
}
