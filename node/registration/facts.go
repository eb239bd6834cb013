package registration

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
)

// NodeAddresses returns the addresses of a Node.
func NodeAddresses(ips []string, hostname string) []corev1.NodeAddress {
	out := make([]corev1.NodeAddress, 0, len(ips)+1)
	for _, ip := range ips {
		out = append(out, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: ip})
	}
	return append(out, corev1.NodeAddress{Type: corev1.NodeHostName, Address: hostname})
}

// NotReadyReason joins the reasons why a node is not ready. Empty reasons are left out.
func NotReadyReason(reasons ...string) string {
	return strings.Join(slices.DeleteFunc(reasons, func(s string) bool { return s == "" }), "; ")
}

// imagesMaxAge is the maximum age of the image list in the node status.
const imagesMaxAge = time.Minute

// ImageList caches the images in the node status. One goroutine uses it.
type ImageList struct {
	List func(context.Context) ([]corev1.ContainerImage, error)

	images   []corev1.ContainerImage
	listedAt time.Time
}

// Images returns the current list. After an error it returns the last one.
func (l *ImageList) Images(ctx context.Context) []corev1.ContainerImage {
	if time.Since(l.listedAt) > imagesMaxAge {
		if images, err := l.List(ctx); err == nil {
			l.images, l.listedAt = images, time.Now()
		}
	}
	return l.images
}

// Changes reports changes of the Node that affect pods. One goroutine uses it.
type Changes struct {
	// OnLabelsOrTaints is called when the labels or the taints have changed.
	OnLabelsOrTaints func(labels map[string]string, taints []corev1.Taint)
	// OnPodCIDRs is called when the pod CIDRs have changed, and after an error with the next Node
	// again. Nil: pod CIDRs are not used.
	OnPodCIDRs func([]string) error
	Log        *slog.Logger

	labels   map[string]string
	taints   []corev1.Taint
	podCIDRs []string
}

// Apply reports the changes since the last Node.
func (c *Changes) Apply(n *corev1.Node) {
	if !maps.Equal(c.labels, n.Labels) || !equality.Semantic.DeepEqual(c.taints, n.Spec.Taints) {
		c.labels, c.taints = n.Labels, n.Spec.Taints
		c.OnLabelsOrTaints(n.Labels, n.Spec.Taints)
	}
	if c.OnPodCIDRs == nil || len(n.Spec.PodCIDRs) == 0 || slices.Equal(c.podCIDRs, n.Spec.PodCIDRs) {
		return
	}
	if err := c.OnPodCIDRs(n.Spec.PodCIDRs); err != nil {
		c.Log.Error("pod network configuration failed", "podCIDRs", n.Spec.PodCIDRs, "err", err)
		return
	}
	c.podCIDRs = n.Spec.PodCIDRs
}
