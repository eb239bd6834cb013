package cri

import (
	"context"

	"k8s.io/apimachinery/pkg/types"

	"berth/cri/criconfig"
)

// owns reports whether this berth created the object with these labels.
func (c *Client) owns(labels map[string]string) bool {
	if labels[criconfig.OwnerLabel] != criconfig.OwnerVersion {
		return false
	}
	switch instance := labels[criconfig.InstanceLabel]; {
	case c.instance == "" || instance == c.instance:
		return true
	case instance == "":
		return c.ownsUnlabeled == nil || c.ownsUnlabeled(types.UID(labels[labelPodUID]))
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

// creatorOf returns the creator of an object that this berth did not create. The kubelet and programs
// that imitate it set the label with the UID of the pod.
func creatorOf(labels map[string]string) Creator {
	switch {
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
			Creator: creatorOf(s.Labels),
		})
	}
	return foreign, err
}
