package registration

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
)

func TestNodeAddressesAndNotReadyReason(t *testing.T) {
	t.Parallel()
	got := NodeAddresses([]string{"192.0.2.1", "2001:db8::1"}, "n1")
	if len(got) != 3 || got[1].Type != corev1.NodeInternalIP || got[2].Type != corev1.NodeHostName {
		t.Errorf("got %+v", got)
	}
	if got := NotReadyReason("", "no runtime", "", "shutting down"); got != "no runtime; shutting down" {
		t.Errorf("got %q", got)
	}
	if got := NotReadyReason("", ""); got != "" {
		t.Errorf("got %q", got)
	}
}

func TestImageListIsCached(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		calls, failed := 0, errors.New("runtime is down")
		l := ImageList{List: func(context.Context) ([]corev1.ContainerImage, error) {
			calls++
			return []corev1.ContainerImage{{SizeBytes: int64(calls)}}, failed
		}}
		if got := l.Images(t.Context()); got != nil {
			t.Errorf("after an error: got %+v", got)
		}
		failed = nil
		l.Images(t.Context())
		if got := l.Images(t.Context()); len(got) != 1 || calls != 2 {
			t.Errorf("got %+v after %d calls", got, calls)
		}
		time.Sleep(imagesMaxAge + time.Second)
		if got := l.Images(t.Context()); len(got) != 1 || got[0].SizeBytes != 3 {
			t.Errorf("after the maximum age: got %+v", got)
		}
	})
}

func TestChangesAreReportedOnce(t *testing.T) {
	t.Parallel()
	labels, ranges, failed := 0, 0, errors.New("no bridge")
	c := Changes{
		OnLabelsOrTaints: func(map[string]string, []corev1.Taint) { labels++ },
		OnPodCIDRs:       func([]string) error { ranges++; return failed },
		Log:              slog.New(slog.DiscardHandler),
	}
	n := &corev1.Node{}
	n.Labels = map[string]string{"a": "b"}
	c.Apply(n)
	n.Spec.PodCIDRs = []string{"10.85.1.0/24"}
	c.Apply(n)
	failed = nil
	c.Apply(n)
	c.Apply(n)
	if labels != 1 || ranges != 2 {
		t.Errorf("got %d changes of labels, %d of pod CIDRs", labels, ranges)
	}
	n.Spec.Taints = []corev1.Taint{{Key: "k", Effect: corev1.TaintEffectNoSchedule}}
	c.Apply(n)
	if labels != 2 {
		t.Errorf("got %d changes of labels and taints", labels)
	}
}

// Addresses of an external cloud provider are kept: both agents would replace them in turn otherwise.
func TestProviderAddressesAreKept(t *testing.T) {
	t.Parallel()
	own := []corev1.NodeAddress{
		{Type: corev1.NodeInternalIP, Address: "10.0.0.1"}, {Type: corev1.NodeHostName, Address: "n"},
	}
	external := corev1.NodeAddress{Type: corev1.NodeExternalIP, Address: "192.0.2.1"}
	has := &corev1.NodeStatus{Addresses: []corev1.NodeAddress{
		{Type: corev1.NodeInternalIP, Address: "10.0.0.9"}, external,
	}}
	if got := withProviderAddresses(own, has); !slices.Equal(got, append(slices.Clone(own), external)) {
		t.Errorf("got %v", got)
	}
	if got := withProviderAddresses(own, nil); !slices.Equal(got, own) {
		t.Errorf("got %v without a Node", got)
	}
}
