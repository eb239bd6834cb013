package admission

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/admission"
	corelisters "k8s.io/client-go/listers/core/v1"
)

// topologyLabels copies the topology labels of the node to the pod when the pod is bound, so that
// the downward API can expose them.
type topologyLabels struct {
	*admission.Handler

	nodes corelisters.NodeLister
}

func newTopologyLabels(c Config) (admission.Interface, error) {
	return &topologyLabels{admission.NewHandler(admission.Create), c.Informers.Core().V1().Nodes().Lister()}, nil
}

// Admit labels pods created with a node name, and bindings, whose labels are copied to the pod.
func (l *topologyLabels) Admit(_ context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	if pod, ok := podOf(a); ok {
		if pod.Spec.NodeName == "" {
			return nil
		}
		return l.label(pod.Spec.NodeName, &pod.Labels)
	}
	binding, ok := a.GetObject().(*corev1.Binding)
	if !ok || binding.Target.Kind != "" && binding.Target.Kind != "Node" {
		return nil
	}
	return l.label(binding.Target.Name, &binding.Labels)
}

func (l *topologyLabels) label(name string, labels *map[string]string) error {
	node, err := l.nodes.Get(name)
	if apierrors.IsNotFound(err) {
		return nil // the node may be created later
	}
	if err != nil {
		return fmt.Errorf("get node %s: %w", name, err)
	}
	for _, key := range []string{corev1.LabelTopologyZone, corev1.LabelTopologyRegion} {
		if value, ok := node.Labels[key]; ok {
			if *labels == nil {
				*labels = map[string]string{}
			}
			(*labels)[key] = value
		}
	}
	return nil
}
