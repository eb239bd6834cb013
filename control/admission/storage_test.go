package admission

import (
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authentication/user"
)

// withClasses returns a Config whose started informers have the classes.
func withClasses(t *testing.T, classes ...*storagev1.StorageClass) Config {
	t.Helper()
	c := newTestConfig(t)
	c.Informers.Storage().V1().StorageClasses().Informer() // so that it is started
	for _, class := range classes {
		if _, err := c.Client.StorageV1().StorageClasses().Create(t.Context(), class,
			metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	c.Informers.Start(t.Context().Done())
	t.Cleanup(c.Informers.Shutdown)
	for kind, synced := range c.Informers.WaitForCacheSync(t.Context().Done()) {
		if !synced {
			t.Fatalf("%v is not synced", kind)
		}
	}
	return c
}

func claimRequest(obj, old runtime.Object, operation admission.Operation) admission.Attributes {
	return admission.NewAttributesRecord(obj, old, corev1.SchemeGroupVersion.WithKind("PersistentVolumeClaim"), "ns",
		"data", corev1.SchemeGroupVersion.WithResource("persistentvolumeclaims"), "", operation, nil, false,
		&user.DefaultInfo{Name: "ann"})
}

func TestDefaultStorageClass(t *testing.T) {
	t.Parallel()
	class := &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "fast",
		Annotations: map[string]string{"storageclass.kubernetes.io/is-default-class": "true"}}}
	p := newTestPlugin(t, newDefaultStorageClass, withClasses(t, class)).(admission.MutationInterface)
	none := ""
	for _, tc := range []struct {
		before *string
		want   string
	}{{nil, "fast"}, {&none, ""}} {
		claim := &corev1.PersistentVolumeClaim{Spec: corev1.PersistentVolumeClaimSpec{StorageClassName: tc.before}}
		if err := p.Admit(t.Context(), claimRequest(claim, nil, admission.Create), nil); err != nil {
			t.Fatal(err)
		}
		if got := *claim.Spec.StorageClassName; got != tc.want {
			t.Errorf("class %q, want %q", got, tc.want)
		}
	}
}

func TestStorageProtection(t *testing.T) {
	t.Parallel()
	p := newTestPlugin(t, newStorageProtection, newTestConfig(t)).(admission.MutationInterface)
	for want, obj := range map[string]runtime.Object{
		"kubernetes.io/pvc-protection": &corev1.PersistentVolumeClaim{},
		"kubernetes.io/pv-protection":  &corev1.PersistentVolume{},
		"kubernetes.io/vac-protection": &storagev1.VolumeAttributesClass{},
	} {
		for range 2 { // a second time after a webhook
			if err := p.Admit(t.Context(), claimRequest(obj, nil, admission.Create), nil); err != nil {
				t.Fatal(err)
			}
		}
		if got := obj.(metav1.Object).GetFinalizers(); !slices.Equal(got, []string{want}) {
			t.Errorf("finalizers %v, want %s", got, want)
		}
	}
}

func TestClaimResize(t *testing.T) {
	t.Parallel()
	yes := true
	p := newTestPlugin(t, newClaimResize, withClasses(t,
		&storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "grows"}, AllowVolumeExpansion: &yes},
		&storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "fixed"}})).(admission.ValidationInterface)
	claim := func(class, size string, phase corev1.PersistentVolumeClaimPhase) *corev1.PersistentVolumeClaim {
		return &corev1.PersistentVolumeClaim{
			Spec: corev1.PersistentVolumeClaimSpec{StorageClassName: &class, Resources: corev1.
				VolumeResourceRequirements{Requests: corev1.ResourceList{
				corev1.ResourceStorage: resource.MustParse(size)}}},
			Status: corev1.PersistentVolumeClaimStatus{Phase: phase}}
	}
	for _, tc := range []struct {
		class, before, after string
		phase                corev1.PersistentVolumeClaimPhase
		want                 string
	}{
		{"grows", "1Gi", "2Gi", corev1.ClaimBound, ""},
		{"fixed", "1Gi", "1Gi", corev1.ClaimBound, ""},
		{"fixed", "1Gi", "2Gi", corev1.ClaimBound, "only dynamically provisioned pvc can be resized"},
		{"missing", "1Gi", "2Gi", corev1.ClaimBound, "only dynamically provisioned pvc can be resized"},
		{"grows", "1Gi", "2Gi", corev1.ClaimPending, "only bound persistent volume claims can be expanded"},
	} {
		err := p.Validate(t.Context(), claimRequest(claim(tc.class, tc.after, tc.phase),
			claim(tc.class, tc.before, tc.phase), admission.Update), nil)
		if (err == nil) != (tc.want == "") || err != nil && !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%+v: got %v", tc, err)
		}
	}
}
