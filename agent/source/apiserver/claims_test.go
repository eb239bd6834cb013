package apiserver

import (
	"net/http"
	"path"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"berth/agent/plan"
	"berth/agent/source"
)

// claimServer answers requests for a claim and its volume, and counts them.
type claimServer struct {
	server

	mu       sync.Mutex
	claim    *corev1.PersistentVolumeClaim
	volume   *corev1.PersistentVolume
	requests int
}

func (s *claimServer) RoundTrip(r *http.Request) (*http.Response, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch base := path.Base(r.URL.Path); {
	case base == "data" && strings.Contains(r.URL.Path, "/persistentvolumeclaims/"):
		s.requests++
		return respond(r, s.claim.DeepCopy())
	case base == "disk" && strings.Contains(r.URL.Path, "/persistentvolumes/"):
		return respond(r, s.volume.DeepCopy())
	}
	return s.server.RoundTrip(r)
}

// TestClaimIsRequestedUntilItIsBound: a node may not watch claims. A bound claim is not requested again.
func TestClaimIsRequestedUntilItIsBound(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		pod := podOf("a", "")
		pod.Spec.NodeName = "n"
		pod.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data"}}}}
		fake := &claimServer{server: server{pod},
			claim: &corev1.PersistentVolumeClaim{
				TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "PersistentVolumeClaim"},
				ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "data", UID: "claim"},
				Status:     corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimPending}},
			volume: &corev1.PersistentVolume{
				TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "PersistentVolume"},
				ObjectMeta: metav1.ObjectMeta{Name: "disk", UID: "volume"},
				Spec: corev1.PersistentVolumeSpec{ClaimRef: &corev1.ObjectReference{UID: "claim"},
					PersistentVolumeSource: corev1.PersistentVolumeSource{
						Local: &corev1.LocalVolumeSource{Path: "/mnt/disk"}}}},
		}
		last := startSource(t, fake)
		current := func() (plan.Object, int) {
			time.Sleep(maxTokenRetry)
			synctest.Wait()
			fake.mu.Lock()
			defer fake.mu.Unlock()
			return last.Load().Objects[source.ObjectKey{Kind: plan.Claim,
				NamespacedName: types.NamespacedName{Namespace: "default", Name: "data"}}], fake.requests
		}
		if o, n := current(); o.Err != "error processing PVC default/data: PVC is not bound" || n < 2 {
			t.Errorf("got %+v after %d requests", o, n)
		}
		fake.mu.Lock()
		fake.claim.Spec.VolumeName, fake.claim.Status.Phase = "disk", corev1.ClaimBound
		fake.claim.Annotations = map[string]string{annBindCompleted: "yes"}
		fake.mu.Unlock()
		o, before := current()
		if o.Volume == nil || o.Volume.Spec.Local.Path != "/mnt/disk" || o.Version.Version != "claim/volume" {
			t.Errorf("got %+v", o)
		}
		if _, after := current(); after != before {
			t.Errorf("%d requests after the claim was bound", after-before)
		}
	})
}
