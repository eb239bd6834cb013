package controllers

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
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
