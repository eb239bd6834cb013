package admission

import (
	"strings"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/kubernetes/fake"

	"berth/control/tokens"
)

// nodeRequest returns a request of a node.
func nodeRequest(node string, object, old runtime.Object, resource, name, subresource string,
	operation admission.Operation) admission.Attributes {
	return admission.NewAttributesRecord(object, old, corev1.SchemeGroupVersion.WithKind("K"), "ns", name,
		corev1.SchemeGroupVersion.WithResource(resource), subresource, operation, nil, false,
		&user.DefaultInfo{Name: "system:node:" + node, Groups: []string{"system:nodes"}})
}

// TestNodeWithoutNameIsRejected: no rule would apply to it.
func TestNodeWithoutNameIsRejected(t *testing.T) {
	t.Parallel()
	p := newTestPlugin(t, newNodeRestriction, newTestConfig(t)).(admission.ValidationInterface)
	err := p.Validate(t.Context(), nodeRequest("", &corev1.Service{}, nil, "services", "s", "", admission.Create), nil)
	if err == nil || !strings.Contains(err.Error(), `could not determine node from user "system:node:"`) {
		t.Errorf("got %v", err)
	}
}

// TestNodeTokenAudiences requests tokens for the audiences of projected volumes and of CSI drivers, and for others.
func TestNodeTokenAudiences(t *testing.T) {
	t.Parallel()
	driver := func(name, audience string) *storagev1.CSIDriver {
		return &storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec: storagev1.CSIDriverSpec{TokenRequests: []storagev1.TokenRequest{{Audience: audience}}}}
	}
	claim := func(name, pv string) *corev1.PersistentVolumeClaim {
		return &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name},
			Spec: corev1.PersistentVolumeClaimSpec{VolumeName: pv}}
	}
	pv := func(name, driver string) *corev1.PersistentVolume {
		return &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec: corev1.PersistentVolumeSpec{PersistentVolumeSource: corev1.PersistentVolumeSource{
				CSI: &corev1.CSIPersistentVolumeSource{Driver: driver}}}}
	}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p", UID: "1"}, Spec: corev1.PodSpec{
		NodeName: "n", Volumes: []corev1.Volume{
			{Name: "projected", VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{
				Sources: []corev1.VolumeProjection{{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{
					Audience: "vault"}}}}}},
			{Name: "inline", VolumeSource: corev1.VolumeSource{CSI: &corev1.CSIVolumeSource{Driver: "inline.csi"}}},
			{Name: "claim", VolumeSource: corev1.VolumeSource{
				PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "c"}}},
			{Name: "own", VolumeSource: corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{}}},
			{Name: "absent", VolumeSource: corev1.VolumeSource{CSI: &corev1.CSIVolumeSource{Driver: "absent.csi"}}},
		}}}
	c := newTestConfig(t)
	c.Client = fake.NewClientset(pod, driver("inline.csi", "inline"), driver("claim.csi", "claimed"),
		driver("own.csi", "owned"), driver("other.csi", "elsewhere"), claim("c", "one"), claim("p-own", "two"),
		pv("one", "claim.csi"), pv("two", "own.csi"))
	c.GetPod = tokens.LiveGetter{Client: c.Client}.Pod
	p := newTestPlugin(t, newNodeRestriction, c).(admission.ValidationInterface)
	for audience, allowed := range map[string]bool{"vault": true, "inline": true, "claimed": true, "owned": true,
		"elsewhere": false, "": false} {
		r := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{
			Audiences:      []string{audience},
			BoundObjectRef: &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Pod", Name: "p", UID: "1"},
		}}
		err := p.Validate(t.Context(),
			nodeRequest("n", r, nil, "serviceaccounts", "default", "token", admission.Create), nil)
		if (err == nil) != allowed || !allowed && !strings.Contains(err.Error(), "not found in pod spec volume") {
			t.Errorf("audience %q: got %v", audience, err)
		}
	}
}

// TestMirrorPodReferences: a node must not get access to objects by a pod that it creates itself.
func TestMirrorPodReferences(t *testing.T) {
	t.Parallel()
	c := newTestConfig(t, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", UID: "7"}})
	p := newTestPlugin(t, newNodeRestriction, c).(admission.ValidationInterface)
	yes := true
	for _, row := range []struct {
		want   string
		volume corev1.VolumeSource
	}{
		{"", corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}},
		{"reference secrets", corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "s"}}},
		{"reference clustertrustbundles", corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{
			Sources: []corev1.VolumeProjection{{ClusterTrustBundle: &corev1.ClusterTrustBundleProjection{}}}}}},
		{"reference podcertificates", corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{
			Sources: []corev1.VolumeProjection{{PodCertificate: &corev1.PodCertificateProjection{}}}}}},
	} {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "m",
			Annotations: map[string]string{corev1.MirrorPodAnnotationKey: "x"},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: "n", UID: "7",
				Controller: &yes}}},
			Spec: corev1.PodSpec{NodeName: "n", Volumes: []corev1.Volume{{Name: "v", VolumeSource: row.volume}}}}
		err := p.Validate(t.Context(), nodeRequest("n", pod, nil, "pods", "m", "", admission.Create), nil)
		if row.want == "" && err != nil || row.want != "" && (err == nil || !strings.Contains(err.Error(), row.want)) {
			t.Errorf("want %q, got %v", row.want, err)
		}
	}
}
