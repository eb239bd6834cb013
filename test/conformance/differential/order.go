package differential

import (
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/tools/cache"
)

// recordOrder records the creation (+) and the deletion (-) of the pods of StatefulSets.
func (p *plane) recordOrder(pods cache.SharedIndexInformer) error {
	_, err := pods.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: func(obj any) { p.recordStep("+", nil, obj) },
		UpdateFunc: func(old, obj any) {
			before, _ := old.(*corev1.Pod)
			if pod, is := obj.(*corev1.Pod); is && before != nil && before.UID != pod.UID {
				p.recordStep("-", nil, before)
				p.recordStep("+", nil, pod)
			} else if is && pod.DeletionTimestamp != nil {
				p.recordStep("-", before, pod)
			}
		},
		DeleteFunc: func(obj any) {
			if gone, is := obj.(cache.DeletedFinalStateUnknown); is {
				obj = gone.Obj
			}
			if pod, is := obj.(*corev1.Pod); is {
				p.recordStep("-", pod, pod)
			}
		},
	})
	return err
}

// recordStep records a step of a pod, unless the pod was being deleted before.
func (p *plane) recordStep(step string, before *corev1.Pod, obj any) {
	pod, is := obj.(*corev1.Pod)
	if !is || before != nil && before.DeletionTimestamp != nil {
		return
	}
	if owner := metav1.GetControllerOfNoCopy(pod); owner == nil || owner.Kind != "StatefulSet" {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.steps[pod.Namespace] = append(p.steps[pod.Namespace], step+pod.Name)
}

// takeSteps returns and forgets the steps in a namespace.
func (p *plane) takeSteps(namespace string) []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	steps := p.steps[namespace]
	delete(p.steps, namespace)
	return steps
}

// ordered reports whether the namespace has a StatefulSet that promises the order of its pods.
func (p *plane) ordered(namespace string) bool {
	set, err := p.informers.Apps().V1().StatefulSets().Lister().StatefulSets(namespace).Get("w")
	if err != nil || set.Spec.PodManagementPolicy != appsv1.OrderedReadyPodManagement {
		return false
	}
	// With a higher maxUnavailable, several pods terminate at once.
	u := set.Spec.UpdateStrategy.RollingUpdate
	return u == nil || u.MaxUnavailable == nil || *u.MaxUnavailable == intstr.FromInt32(1)
}

// compareOrder returns the difference between the steps since the last edit, if their order is promised.
func compareOrder(planes [2]*plane, namespace string) string {
	a, b := planes[0].takeSteps(namespace), planes[1].takeSteps(namespace)
	if !planes[0].ordered(namespace) || slices.Equal(a, b) {
		return ""
	}
	return "order of pods\n- " + strings.Join(a, " ") + "\n+ " + strings.Join(b, " ") + "\n"
}
