package controllers

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	metadatafake "k8s.io/client-go/metadata/fake"
	clienttesting "k8s.io/client-go/testing"
)

// TestQuotaUsageDecreaseIsDelayed: the usage recorded by admission is not lowered while the object
// may not be stored yet.
func TestQuotaUsageDecreaseIsDelayed(t *testing.T) {
	t.Parallel()
	list := func(pods, maps string) corev1.ResourceList {
		return corev1.ResourceList{"pods": resource.MustParse(pods), "configmaps": resource.MustParse(maps)}
	}
	out, lower := maxUsage(list("5", "1"), list("4", "2"))
	if pods, maps := out["pods"], out["configmaps"]; !lower || pods.Value() != 5 || maps.Value() != 2 {
		t.Errorf("got usage %v, lower %v", out, lower)
	}
	if _, lower := maxUsage(nil, list("0", "0")); lower {
		t.Error("the first count is reported as lower")
	}
	q := &resourceQuotaController{observed: map[string]observedVersion{}}
	now := time.Now()
	for _, row := range []struct {
		after   time.Duration
		version string
		left    time.Duration
	}{{0, "1", quotaSettlePeriod}, {quotaSettlePeriod / 2, "1", quotaSettlePeriod / 2}, {quotaSettlePeriod, "1", 0},
		{quotaSettlePeriod, "2", quotaSettlePeriod}, {2 * quotaSettlePeriod, "2", 0}} {
		if left := q.settleDelay("a/q", row.version, now.Add(row.after)); left != row.left {
			t.Errorf("after %s, version %s: got delay %s, want %s", row.after, row.version, left, row.left)
		}
	}
}

// TestQuotaCountsWhatItCan: objects of an extension API server that does not respond keep their recorded usage, and the
// usage of other objects is counted.
func TestQuotaCountsWhatItCan(t *testing.T) {
	t.Parallel()
	scheme := metadatafake.NewTestScheme()
	if err := metav1.AddMetaToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	objects := metadatafake.NewSimpleMetadataClient(scheme, &metav1.PartialObjectMetadata{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"},
		ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "one"}})
	objects.PrependReactor("list", "flunders", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewServiceUnavailable("no server")
	})
	client := fake.NewClientset()
	client.Resources = []*metav1.APIResourceList{{GroupVersion: "wardle.example.com/v1"}}
	q := &resourceQuotaController{Config: Config{Client: client, Metadata: objects,
		Informers: informers.NewSharedInformerFactory(client, 0)}}
	const flunders, others = "count/flunders.wardle.example.com", "count/others.wardle.example.com"
	rq := &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "q"},
		Spec:   corev1.ResourceQuotaSpec{Hard: resourceList(flunders, "5", others, "5", "count/configmaps", "5")},
		Status: corev1.ResourceQuotaStatus{Used: resourceList(flunders, "2")}}
	used, err := q.usage(t.Context(), rq)
	if !apierrors.IsServiceUnavailable(err) {
		t.Errorf("got error %v, want one of the list of flunders", err)
	}
	if want := resourceList(flunders, "2", others, "0", "count/configmaps", "1"); !apiequality.Semantic.DeepEqual(used,
		want) {
		t.Errorf("got usage %v, want %v", used, want)
	}
}

func resourceList(pairs ...string) corev1.ResourceList {
	out := corev1.ResourceList{}
	for i := 0; i < len(pairs); i += 2 {
		out[corev1.ResourceName(pairs[i])] = resource.MustParse(pairs[i+1])
	}
	return out
}
