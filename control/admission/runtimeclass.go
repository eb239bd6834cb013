package admission

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/client-go/kubernetes"
	nodelisters "k8s.io/client-go/listers/node/v1"
)

type runtimeClasses struct {
	*admission.Handler

	classes nodelisters.RuntimeClassLister
	client  kubernetes.Interface
}

func newRuntimeClasses(c Config) (admission.Interface, error) {
	return &runtimeClasses{admission.NewHandler(admission.Create), c.Informers.Node().V1().RuntimeClasses().Lister(),
		c.Client}, nil
}

// classOf returns the RuntimeClass of the pod, or nil for a pod without one.
func (r *runtimeClasses) classOf(ctx context.Context, a admission.Attributes,
	pod *corev1.Pod) (*nodev1.RuntimeClass, error) {
	if pod.Spec.RuntimeClassName == nil {
		return nil, nil //nolint:nilnil // no class is an answer
	}
	name := *pod.Spec.RuntimeClassName
	class, err := r.classes.Get(name)
	if apierrors.IsNotFound(err) {
		class, err = r.client.NodeV1().RuntimeClasses().Get(ctx, name, metav1.GetOptions{})
	}
	if apierrors.IsNotFound(err) {
		return nil, admission.NewForbidden(a, fmt.Errorf("pod rejected: RuntimeClass %q not found", name))
	}
	return class, err
}

// Admit sets the overhead and adds the node selector and the tolerations of the pod's RuntimeClass.
func (r *runtimeClasses) Admit(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	pod, ok := podOf(a)
	if !ok {
		return nil
	}
	class, err := r.classOf(ctx, a, pod)
	if err != nil || class == nil {
		return err
	}
	if class.Overhead != nil {
		if len(pod.Spec.Overhead) > 0 && !equality.Semantic.DeepEqual(pod.Spec.Overhead, class.Overhead.PodFixed) {
			return admission.NewForbidden(a,
				fmt.Errorf("pod rejected: Pod's Overhead doesn't match RuntimeClass's defined "+
					"Overhead"))
		}
		pod.Spec.Overhead = class.Overhead.PodFixed.DeepCopy()
	}
	if class.Scheduling == nil {
		return nil
	}
	for key, value := range class.Scheduling.NodeSelector {
		if have, ok := pod.Spec.NodeSelector[key]; ok && have != value {
			return admission.NewForbidden(a, fmt.Errorf("conflict: runtimeClass.scheduling.nodeSelector[%s] = %s; "+
				"pod.spec.nodeSelector[%s] = %s", key, value, key, have))
		}
		if pod.Spec.NodeSelector == nil {
			pod.Spec.NodeSelector = map[string]string{}
		}
		pod.Spec.NodeSelector[key] = value
	}
	for _, t := range class.Scheduling.Tolerations {
		if !hasToleration(pod.Spec.Tolerations, t) {
			pod.Spec.Tolerations = append(pod.Spec.Tolerations, *t.DeepCopy())
		}
	}
	return nil
}

func hasToleration(have []corev1.Toleration, want corev1.Toleration) bool {
	for i := range have {
		if equality.Semantic.DeepEqual(have[i], want) {
			return true
		}
	}
	return false
}

// Validate rejects an overhead that does not come from the pod's RuntimeClass.
func (r *runtimeClasses) Validate(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	pod, ok := podOf(a)
	if !ok {
		return nil
	}
	class, err := r.classOf(ctx, a, pod)
	if err != nil {
		return err
	}
	switch {
	case class != nil && class.Overhead != nil:
		if !equality.Semantic.DeepEqual(class.Overhead.PodFixed, pod.Spec.Overhead) {
			return admission.NewForbidden(a,
				fmt.Errorf("pod rejected: Pod's Overhead doesn't match RuntimeClass's defined Overhead"))
		}
	case len(pod.Spec.Overhead) > 0:
		return admission.NewForbidden(a,
			fmt.Errorf("pod rejected: Pod Overhead set without corresponding RuntimeClass "+
				"defined Overhead"))
	}
	return nil
}
