package source

import (
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"berth/internal/strictyaml"
	"berth/podspec"
	"berth/workloads"
	"berth/workloads/validation"
)

// Workload is a Deployment, StatefulSet, DaemonSet, Job or CronJob of a manifest file, with defaults and validated.
// Its UID is the same on every start and for every edit that an API server would accept as an update.
type Workload struct {
	Object workloads.Object // with apiVersion and kind; immutable
	Hash   string           // of the manifest as written
	File   string
}

// WorkloadKey identifies a workload.
type WorkloadKey struct {
	Kind string
	types.NamespacedName
}

func (k WorkloadKey) String() string { return k.Kind + " " + k.NamespacedName.String() }

// Key returns the key of the workload.
func (w Workload) Key() WorkloadKey { return workloadKey(w.Object) }

func workloadKey(o workloads.Object) WorkloadKey {
	return WorkloadKey{
		Kind:           o.GetObjectKind().GroupVersionKind().Kind,
		NamespacedName: types.NamespacedName{Namespace: o.GetNamespace(), Name: o.GetName()},
	}
}

// workloadVersions holds the apiVersion of each kind of workload.
var workloadVersions = map[string]string{
	"Deployment": "apps/v1", "StatefulSet": "apps/v1", "DaemonSet": "apps/v1", "Job": "batch/v1", "CronJob": "batch/v1",
}

// kindOf returns the kind of a workload, or "" if the object is none.
func kindOf(object any) string {
	switch object.(type) {
	case *appsv1.Deployment:
		return "Deployment"
	case *appsv1.StatefulSet:
		return "StatefulSet"
	case *appsv1.DaemonSet:
		return "DaemonSet"
	case *batchv1.Job:
		return "Job"
	case *batchv1.CronJob:
		return "CronJob"
	}
	return ""
}

// newWorkload returns an empty object of a kind of workloadVersions.
func newWorkload(kind string) workloads.Object {
	switch kind {
	case "Deployment":
		return &appsv1.Deployment{}
	case "StatefulSet":
		return &appsv1.StatefulSet{}
	case "DaemonSet":
		return &appsv1.DaemonSet{}
	case "Job":
		return &batchv1.Job{}
	}
	return &batchv1.CronJob{}
}

// workload decodes a document with a workload.
func (d *decoder) workload(doc strictyaml.Document, kind string) {
	if object := newWorkload(kind); d.object(doc, object) {
		d.m.Workloads = append(d.m.Workloads, object)
	}
}

// TemplateOf returns the pod template of a workload and its path.
func TemplateOf(o workloads.Object) (*corev1.PodTemplateSpec, *field.Path) {
	at := field.NewPath("spec", "template")
	switch w := o.(type) {
	case *appsv1.Deployment:
		return &w.Spec.Template, at
	case *appsv1.StatefulSet:
		return &w.Spec.Template, at
	case *appsv1.DaemonSet:
		return &w.Spec.Template, at
	case *batchv1.Job:
		return &w.Spec.Template, at
	case *batchv1.CronJob:
		return &w.Spec.JobTemplate.Spec.Template, field.NewPath("spec", "jobTemplate", "spec", "template")
	}
	return nil, nil
}

// stripWorkload removes what belongs to an API server: metadata, status and, from a Job, the generated selector.
func stripWorkload(o workloads.Object) {
	annotations := o.GetAnnotations()
	delete(annotations, corev1.LastAppliedConfigAnnotation)
	delete(annotations, revisionAnnotation)
	clean := metav1.ObjectMeta{
		Name: o.GetName(), Namespace: o.GetNamespace(), Labels: o.GetLabels(), Annotations: annotations,
	}
	switch w := o.(type) {
	case *appsv1.Deployment:
		w.ObjectMeta, w.Status = clean, appsv1.DeploymentStatus{}
	case *appsv1.StatefulSet:
		w.ObjectMeta, w.Status = clean, appsv1.StatefulSetStatus{}
	case *appsv1.DaemonSet:
		w.ObjectMeta, w.Status = clean, appsv1.DaemonSetStatus{}
	case *batchv1.CronJob:
		w.ObjectMeta, w.Status = clean, batchv1.CronJobStatus{}
	case *batchv1.Job:
		w.ObjectMeta, w.Status = clean, batchv1.JobStatus{}
		if w.Spec.ManualSelector == nil || !*w.Spec.ManualSelector {
			w.Spec.Selector = nil
			for _, l := range []string{"controller-uid", "job-name", batchv1.ControllerUidLabel, batchv1.JobNameLabel} {
				delete(w.Spec.Template.Labels, l)
				delete(w.Labels, l)
			}
		}
	}
}

// revisionAnnotation is what the Deployment controller sets on a Deployment.
const revisionAnnotation = "deployment.kubernetes.io/revision"

// workloadSums returns the hash of a workload as written, and its UID. The UID covers the fields that an API server
// does not allow to be changed: a change of one of them replaces the workload with its pods.
func (id Identity) workloadSums(key WorkloadKey, written []byte) (string, types.UID) {
	var tree struct {
		Metadata struct {
			Labels      map[string]any `json:"labels,omitempty"`
			Annotations map[string]any `json:"annotations,omitempty"`
		} `json:"metadata"`
		Spec map[string]any `json:"spec"`
	}
	if err := json.Unmarshal(written, &tree); err != nil {
		panic("source: decoded manifest is not JSON") // it was decoded from JSON
	}
	delete(tree.Metadata.Annotations, corev1.LastAppliedConfigAnnotation)
	delete(tree.Metadata.Annotations, revisionAnnotation)
	identity := []any{id.NodeName, key.Kind, key.Namespace, key.Name}
	whole := sum(append(identity, tree)...)
	fixed := map[string]any{}
	for name, value := range tree.Spec {
		if immutable(key.Kind, name) {
			fixed[name] = value
		}
	}
	return hex.EncodeToString(whole[:16]), uidFrom(sum(append(identity, fixed)...))
}

// immutable reports whether a field of the specification is a part of the identity of a workload.
func immutable(kind, name string) bool {
	switch kind {
	case "Deployment", "DaemonSet":
		return name == "selector"
	case "StatefulSet":
		return name == "selector" || name == "serviceName" || name == "podManagementPolicy"
	case "Job":
		switch name {
		case "parallelism", "suspend", "activeDeadlineSeconds", "backoffLimit", "ttlSecondsAfterFinished",
			"podReplacementPolicy":
			return false
		}
		return true
	}
	return false
}

// uidFrom returns a UID with the first 16 bytes of a hash.
func uidFrom(u []byte) types.UID {
	u[6] = u[6]&0x0f | 0x80 // version 8: custom
	u[8] = u[8]&0x3f | 0x80
	return types.UID(fmt.Sprintf("%x-%x-%x-%x-%x", u[:4], u[4:6], u[6:8], u[8:10], u[10:16]))
}

// DerivedUID returns the UID of the object that the values identify. It is the same on every start.
func DerivedUID(values ...string) types.UID {
	list := make([]any, len(values))
	for i, v := range values {
		list[i] = v
	}
	return uidFrom(sum(list...))
}

func (v *validator) workload(o workloads.Object) {
	kind := kindOf(o)
	stripWorkload(o)
	gvk := schema.FromAPIVersionAndKind(workloadVersions[kind], kind)
	o.GetObjectKind().SetGroupVersionKind(gvk)
	rules, known := validation.RulesFor(gvk.GroupKind())
	if !known {
		panic("source: no rules for " + kind) // every kind of workloadVersions has rules
	}
	key := workloadKey(o)
	hash, uid := v.id.workloadSums(key, v.m.written[o])
	o.SetUID(uid)
	rules.Default(o)
	rules.Prepare(o)
	errs := rules.Validate(o)
	warnings, rejected := unsupportedInWorkload(o)
	if errs = append(errs, rejected...); len(errs) > 0 {
		v.complain(o, errs)
		return
	}
	line := v.m.Line(o, "metadata.name")
	for _, w := range warnings {
		v.warn(key.NamespacedName, line, w)
	}
	v.out.Workloads = append(v.out.Workloads, Workload{Object: o, Hash: hash, File: v.in.Path})
	v.out.lines[key] = line
}

// unsupportedInWorkload returns the fields of a workload that berth does not support without an API server, see
// podspec.UnsupportedFields.
func unsupportedInWorkload(o workloads.Object) (warnings []string, rejected field.ErrorList) {
	template, at := TemplateOf(o)
	pod := &corev1.Pod{ObjectMeta: *template.ObjectMeta.DeepCopy(), Spec: *template.Spec.DeepCopy()}
	pod.Namespace, pod.Name = o.GetNamespace(), o.GetName()
	podspec.SetDefaults(pod)
	warnings, rejected = podspec.UnsupportedFields(pod)
	for i := range warnings {
		warnings[i] = at.String() + "." + warnings[i]
	}
	for _, e := range rejected {
		e.Field = at.String() + "." + strings.TrimPrefix(e.Field, ".")
	}
	if set, ok := o.(*appsv1.StatefulSet); ok && len(set.Spec.VolumeClaimTemplates) > 0 {
		rejected = append(rejected, field.Forbidden(field.NewPath("spec", "volumeClaimTemplates"),
			"a file cannot claim volumes, because no API server provisions them: use a hostPath volume"))
	}
	if job, ok := o.(*batchv1.Job); ok && job.Spec.ManagedBy != nil {
		rejected = append(rejected, field.Forbidden(field.NewPath("spec", "managedBy"),
			"no other controller manages the Jobs of files"))
	}
	return warnings, rejected
}
