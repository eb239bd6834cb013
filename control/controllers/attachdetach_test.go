package controllers

import (
	"context"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/record"
	storagehelpers "k8s.io/component-helpers/storage/volume"

	"berth/control/attachments"
)

// csiVolume returns a volume of a CSI driver and the claim that it is bound to.
func csiVolume(name, driver string) (*corev1.PersistentVolume, *corev1.PersistentVolumeClaim) {
	claim := testClaim(name, "", func(c *corev1.PersistentVolumeClaim) {
		c.Spec.VolumeName, c.Status.Phase = name, corev1.ClaimBound
		c.Annotations = map[string]string{storagehelpers.AnnBindCompleted: "yes"}
	})
	v := testVolume(name, "")
	v.Spec.PersistentVolumeSource = corev1.PersistentVolumeSource{
		CSI: &corev1.CSIPersistentVolumeSource{Driver: driver, VolumeHandle: "handle-" + name}}
	v.Spec.ClaimRef = &corev1.ObjectReference{Namespace: claim.Namespace, Name: claim.Name, UID: claim.UID}
	return v, claim
}

func managedNode(name string) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, ResourceVersion: "1",
		Annotations: map[string]string{attachments.ManagedAnnotation: "true"}}}
	n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	return n
}

func podWithClaim(name, node, claim string) *corev1.Pod {
	return newPod(name, node, func(p *corev1.Pod) {
		p.Spec.Volumes = []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim}}}}
	})
}

// settle lets the controller work.
func settle() {
	time.Sleep(time.Second)
	synctest.Wait()
}

func listAttachments(t *testing.T, client kubernetes.Interface) (out []string) {
	t.Helper()
	list, err := client.StorageV1().VolumeAttachments().List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range list.Items {
		out = append(out, *a.Spec.Source.PersistentVolumeName+" "+a.Spec.NodeName)
	}
	slices.Sort(out)
	return out
}

func setAttached(t *testing.T, client kubernetes.Interface, change func(*storagev1.VolumeAttachmentStatus)) {
	t.Helper()
	list, err := client.StorageV1().VolumeAttachments().List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range list.Items {
		change(&a.Status)
		all := client.StorageV1().VolumeAttachments()
		if _, err := all.UpdateStatus(t.Context(), &a, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
}

func drainEvents(events *record.FakeRecorder) string {
	var out []string
	for {
		select {
		case e := <-events.Events:
			out = append(out, e)
		default:
			return strings.Join(out, "\n")
		}
	}
}

func TestVolumesAreAttachedAndDetached(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		events := record.NewFakeRecorder(100)
		v, claim := csiVolume("data", "driver")
		other, otherClaim := csiVolume("shared", "without-attach")
		driver := &storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: "without-attach"},
			Spec: storagev1.CSIDriverSpec{AttachRequired: new(false)}}
		client := startControllers(t, Config{Events: events}, []string{AttachDetach}, v, claim, other, otherClaim,
			driver, managedNode("n1"), managedNode("n2"), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "alien"}},
			testClaim("unbound", ""), podWithClaim("o", "n1", "unbound"), podWithClaim("m", "n1", "missing"),
			podWithClaim("p", "n1", "data"), podWithClaim("q", "n1", "shared"), podWithClaim("r", "alien", "data"))
		settle()
		if got := listAttachments(t, client); !slices.Equal(got, []string{"data n1"}) {
			t.Fatalf("attachments are %v", got)
		}
		setAttached(t, client, func(s *storagev1.VolumeAttachmentStatus) {
			s.AttachError = &storagev1.VolumeError{Time: metav1.Now(), Message: "no disk"}
		})
		settle()
		setAttached(t, client, func(s *storagev1.VolumeAttachmentStatus) { s.Attached, s.AttachError = true, nil })
		settle()
		got := drainEvents(events)
		for _, want := range []string{
			`Warning FailedAttachVolume AttachVolume.Attach failed for volume "data" : no disk`,
			`Normal SuccessfulAttachVolume AttachVolume.Attach succeeded for volume "data"`} {
			if strings.Count(got, want) != 1 {
				t.Errorf("want one event %q, events:\n%s", want, got)
			}
		}
		name := attachments.VolumeName("driver", "handle-data")
		if list := getNode(t, client, "n1").Status.VolumesAttached; len(list) != 1 || list[0].Name != name {
			t.Errorf("volumes attached to n1: %v", list)
		}

		// The node has mounted it: the pod's end alone does not detach it.
		n := getNode(t, client, "n1")
		n.Status.VolumesInUse = []corev1.UniqueVolumeName{name}
		updateNode(t, client, n)
		if err := client.CoreV1().Pods("default").Delete(t.Context(), "p", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		if _, err := client.CoreV1().Pods("default").Create(t.Context(), podWithClaim("s", "n2", "data"),
			metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Hour)
		synctest.Wait()
		if got := listAttachments(t, client); !slices.Equal(got, []string{"data n1"}) {
			t.Fatalf("attachments of a mounted volume are %v", got)
		}
		if got := drainEvents(events); strings.Count(got, "Waiting for detach") != 1 {
			t.Errorf("events: %s", got)
		}
		n = getNode(t, client, "n1")
		n.Status.VolumesInUse = nil
		updateNode(t, client, n)
		settle()
		if got := listAttachments(t, client); !slices.Equal(got, []string{"data n2"}) {
			t.Errorf("attachments after the unmount are %v", got)
		}
		if list := getNode(t, client, "n1").Status.VolumesAttached; len(list) != 0 {
			t.Errorf("volumes attached to n1 after the unmount: %v", list)
		}
	})
}

func updateNode(t *testing.T, client kubernetes.Interface, n *corev1.Node) {
	t.Helper()
	if _, err := client.CoreV1().Nodes().UpdateStatus(context.Background(), n, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// A node of an earlier version has no annotation, and a Node can be registered after its pods were assigned.
func TestPodsWaitForManagedNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		one, oneClaim := csiVolume("one", "driver")
		two, twoClaim := csiVolume("two", "driver")
		old := managedNode("old")
		old.Annotations = nil
		client := startControllers(t, Config{Events: record.NewFakeRecorder(100)}, []string{AttachDetach}, one,
			oneClaim, two, twoClaim, old, podWithClaim("p", "old", "one"), podWithClaim("q", "late", "two"))
		settle()
		if got := listAttachments(t, client); len(got) > 0 {
			t.Fatalf("attachments are %v", got)
		}
		old.Annotations = map[string]string{attachments.ManagedAnnotation: "true"}
		updateNode(t, client, old)
		nodes := client.CoreV1().Nodes()
		if _, err := nodes.Create(t.Context(), managedNode("late"), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		settle()
		if got := listAttachments(t, client); !slices.Equal(got, []string{"one old", "two late"}) {
			t.Errorf("attachments are %v", got)
		}
	})
}
