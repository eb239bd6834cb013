package cri

import (
	"context"
	"time"

	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/cri/criconfig"
)

// owns reports whether this berth created or adopted the object with these labels.
func (c *Client) owns(labels map[string]string) bool {
	uid := types.UID(labels[labelPodUID])
	if _, ok := c.adopted(labels); ok {
		return true
	}
	if c.adoptions.isReleased(uid) {
		return false
	}
	if labels[criconfig.OwnerLabel] != criconfig.OwnerVersion {
		return false
	}
	switch instance := labels[criconfig.InstanceLabel]; {
	case c.instance == "":
		return true
	case instance == c.instance:
		return c.unmarked == nil || !c.unmarked(uid)
	case instance == "":
		return c.ownsUnlabeled == nil || c.ownsUnlabeled(uid)
	default:
		return false
	}
}

// Creator is the program that probably created an object in the runtime.
type Creator string

// The known creators.
const (
	CreatorBerth   Creator = "another berth"
	CreatorKubelet Creator = "kubelet"
	CreatorUnknown Creator = "unknown program"
)

// creatorOf returns the creator of an object that this berth does not own. The kubelet and programs
// that imitate it set the label with the UID of the pod. What this instance of berth has created and
// handed over belongs to the kubelet.
func (c *Client) creatorOf(labels map[string]string) Creator {
	switch {
	case labels[criconfig.OwnerLabel] == criconfig.OwnerVersion && c.instance != "" &&
		labels[criconfig.InstanceLabel] == c.instance:
		return CreatorKubelet
	case labels[criconfig.OwnerLabel] != "":
		return CreatorBerth
	case labels[labelPodUID] != "":
		return CreatorKubelet
	default:
		return CreatorUnknown
	}
}

// ForeignSandbox is a sandbox that another program created.
type ForeignSandbox struct {
	ID, Namespace, Name string
	UID                 types.UID
	Creator             Creator
	Source              string // where the pod came from: file, api; empty: unknown
	Ready               bool
	CreatedAt           time.Time
}

// ForeignImages returns the images of the containers that other programs created, by ID and name, in
// one call.
func (c *Client) ForeignImages(ctx context.Context) (map[string]bool, error) {
	all, err := c.allContainers(ctx, nil)
	images := map[string]bool{}
	for _, k := range all {
		if c.owns(k.Labels) {
			continue
		}
		for _, name := range []string{k.ImageRef, k.ImageId, k.GetImage().GetImage()} {
			if name != "" {
				images[name] = true
			}
		}
	}
	return images, err
}

// ForeignSandboxes returns the sandboxes that other programs created, in one call.
func (c *Client) ForeignSandboxes(ctx context.Context) (foreign []ForeignSandbox, err error) {
	all, err := c.allSandboxes(ctx, nil)
	for _, s := range all {
		if c.owns(s.Labels) {
			continue
		}
		m := s.GetMetadata()
		foreign = append(foreign, ForeignSandbox{
			ID: s.Id, Namespace: m.GetNamespace(), Name: m.GetName(), UID: types.UID(m.GetUid()),
			Creator: c.creatorOf(s.Labels), Source: s.Annotations["kubernetes.io/config.source"],
			Ready: s.State == runtimeapi.PodSandboxState_SANDBOX_READY, CreatedAt: time.Unix(0, s.CreatedAt),
		})
	}
	return foreign, err
}
