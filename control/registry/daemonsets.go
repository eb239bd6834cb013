package registry

import (
	"context"
	"maps"
	"strconv"

	appsv1 "k8s.io/api/apps/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/runtime"
)

// The annotation deprecated.daemonset.template.generation counts the pod templates of a DaemonSet. Only the server
// changes it. Pods carry its value in the label pod-template-generation.

// prepareDaemonSet starts the count. A client may start it higher, for example when it restores a DaemonSet. A value
// that is no number is left for the validation.
func prepareDaemonSet(_ context.Context, obj runtime.Object) {
	d, ok := obj.(*appsv1.DaemonSet)
	if !ok {
		return
	}
	text := d.Annotations[appsv1.DeprecatedTemplateGeneration]
	if n, err := strconv.ParseInt(text, 10, 64); text == "" || err == nil {
		setTemplateGeneration(d, max(1, n))
	}
}

// prepareDaemonSetUpdate counts a changed template.
func prepareDaemonSetUpdate(_ context.Context, obj, old runtime.Object) {
	d, ok := obj.(*appsv1.DaemonSet)
	before, beforeOK := old.(*appsv1.DaemonSet)
	if !ok || !beforeOK {
		return
	}
	n := templateGeneration(before)
	if !apiequality.Semantic.DeepEqual(before.Spec.Template, d.Spec.Template) {
		n++
	}
	setTemplateGeneration(d, n)
}

// prepareDaemonSetStatus keeps the count.
func prepareDaemonSetStatus(_ context.Context, obj, old runtime.Object) {
	d, ok := obj.(*appsv1.DaemonSet)
	before, beforeOK := old.(*appsv1.DaemonSet)
	if ok && beforeOK {
		setTemplateGeneration(d, templateGeneration(before))
	}
}

// templateGeneration returns the count, which is 0 for a DaemonSet that was stored without one.
func templateGeneration(d *appsv1.DaemonSet) int64 {
	n, err := strconv.ParseInt(d.Annotations[appsv1.DeprecatedTemplateGeneration], 10, 64)
	if err != nil {
		return 0
	}
	return n
}

func setTemplateGeneration(d *appsv1.DaemonSet, n int64) {
	annotations := maps.Clone(d.Annotations)
	if annotations == nil {
		annotations = map[string]string{}
	}
	annotations[appsv1.DeprecatedTemplateGeneration] = strconv.FormatInt(n, 10)
	d.Annotations = annotations
}
