package controllers

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// TestALowerCountWaits: what admission has written down is not taken back while
// the object may still be on its way.
func TestALowerCountWaits(t *testing.T) {
	t.Parallel()
	list := func(pods, maps string) corev1.ResourceList {
		return corev1.ResourceList{"pods": resource.MustParse(pods), "configmaps": resource.MustParse(maps)}
	}
	out, lower := raised(list("5", "1"), list("4", "2"))
	if pods, maps := out["pods"], out["configmaps"]; !lower || pods.Value() != 5 || maps.Value() != 2 {
		t.Errorf("raised to %v, lower %v", out, lower)
	}
	if _, lower := raised(nil, list("0", "0")); lower {
		t.Error("a first count is never lower")
	}
	q := &counter{seen: map[string]sighting{}}
	now := time.Now()
	for _, row := range []struct {
		after   time.Duration
		version string
		left    time.Duration
	}{{0, "1", settles}, {settles / 2, "1", settles / 2}, {settles, "1", 0}, {settles, "2", settles}, {2 * settles, "2", 0}} {
		if left := q.unsettled("a/q", row.version, now.Add(row.after)); left != row.left {
			t.Errorf("after %s, version %s: %s are left, want %s", row.after, row.version, left, row.left)
		}
	}
}
