package admission

import (
	"context"
	"errors"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/admission"
)

// alwaysPullImages sets the pull policy of all containers, so that a pod can use a private image only with credentials
// for it.
type alwaysPullImages struct{ *admission.Handler }

func newAlwaysPullImages(Config) (admission.Interface, error) {
	return alwaysPullImages{admission.NewHandler(admission.Create, admission.Update)}, nil
}

// podImages returns the images of a pod with the paths of their pull policies and the policies themselves. The
// policies of image volumes are included.
func podImages(pod *corev1.Pod) (images []string, paths []*field.Path, policies []*corev1.PullPolicy) {
	add := func(image string, path *field.Path, policy *corev1.PullPolicy) {
		images, paths, policies = append(images, image), append(paths, path), append(policies, policy)
	}
	spec := field.NewPath("spec")
	for i := range pod.Spec.InitContainers {
		c := &pod.Spec.InitContainers[i]
		add(c.Image, spec.Child("initContainers").Index(i).Child("imagePullPolicy"), &c.ImagePullPolicy)
	}
	for i := range pod.Spec.Containers {
		c := &pod.Spec.Containers[i]
		add(c.Image, spec.Child("containers").Index(i).Child("imagePullPolicy"), &c.ImagePullPolicy)
	}
	for i := range pod.Spec.EphemeralContainers {
		c := &pod.Spec.EphemeralContainers[i]
		add(c.Image, spec.Child("ephemeralContainers").Index(i).Child("imagePullPolicy"), &c.ImagePullPolicy)
	}
	for i := range pod.Spec.Volumes {
		if image := pod.Spec.Volumes[i].Image; image != nil {
			add(image.Reference, spec.Child("volumes").Index(i).Child("image", "pullPolicy"), &image.PullPolicy)
		}
	}
	return images, paths, policies
}

// changedImages returns the pod of a request that can contain new images. An update without new images is ignored, so
// that pods from before the plugin was enabled can be updated.
func changedImages(a admission.Attributes) (*corev1.Pod, bool) {
	pod, ok := a.GetObject().(*corev1.Pod)
	if !ok || !isResource(a, "", "pods") || a.GetSubresource() != "" && a.GetSubresource() != "ephemeralcontainers" {
		return nil, false
	}
	if old, updated := a.GetOldObject().(*corev1.Pod); updated && a.GetOperation() == admission.Update {
		now, _, _ := podImages(pod)
		before, _, _ := podImages(old)
		return pod, !sets.New(before...).HasAll(now...)
	}
	return pod, true
}

// Admit sets the pull policy.
func (alwaysPullImages) Admit(_ context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	pod, ok := changedImages(a)
	if !ok {
		return nil
	}
	_, _, policies := podImages(pod)
	for _, policy := range policies {
		*policy = corev1.PullAlways
	}
	return nil
}

// Validate rejects a pod whose pull policy a later plugin has changed.
func (alwaysPullImages) Validate(_ context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	pod, ok := changedImages(a)
	if !ok {
		return nil
	}
	var all []error
	_, paths, policies := podImages(pod)
	for i, policy := range policies {
		if *policy != corev1.PullAlways {
			all = append(all, field.NotSupported(paths[i], *policy, []corev1.PullPolicy{corev1.PullAlways}))
		}
	}
	if err := errors.Join(all...); err != nil {
		return admission.NewForbidden(a, err)
	}
	return nil
}

// denyServiceExternalIPs rejects new external IPs of Services. An external IP redirects the traffic of all pods to it.
type denyServiceExternalIPs struct{ *admission.Handler }

func newDenyServiceExternalIPs(Config) (admission.Interface, error) {
	return denyServiceExternalIPs{admission.NewHandler(admission.Create, admission.Update)}, nil
}

// Validate allows external IPs that the Service has already.
func (denyServiceExternalIPs) Validate(_ context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	service, ok := a.GetObject().(*corev1.Service)
	if !ok || !isResource(a, "", "services") || a.GetSubresource() != "" {
		return nil
	}
	var before []string
	if old, found := a.GetOldObject().(*corev1.Service); found && a.GetOperation() == admission.Update {
		before = old.Spec.ExternalIPs
	}
	for _, ip := range service.Spec.ExternalIPs {
		if !slices.Contains(before, ip) {
			return apierrors.NewForbidden(a.GetResource().GroupResource(), a.GetName(),
				errors.New("Use of external IPs is denied by admission control.")) //nolint:revive // upstream's
		}
	}
	return nil
}
