package source

import (
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"berth/agent/plan"
	"berth/internal/strictyaml"
	"berth/podspec"
)

// DesiredState is the validated content of one file. It is immutable.
type DesiredState struct {
	Pods      []*corev1.Pod
	Workloads []Workload
	Services  []*corev1.Service
	Objects   map[ObjectKey]plan.Object
	Warnings  []Warning

	lines map[any]int // line of its name, by object
}

// isEmpty reports whether the file defines nothing.
func (d *DesiredState) isEmpty() bool {
	return len(d.Pods)+len(d.Workloads)+len(d.Services)+len(d.Objects) == 0
}

// Input is one version of a file.
type Input struct {
	Path     string
	Data     []byte
	Modified time.Time // creation timestamp of new pods
	Now      time.Time

	PreviousPod func(types.UID) *corev1.Pod // pod of the previous run of the agent; may be nil
}

// Validate decodes one version of a file, sets defaults and validates it. before, which may be nil,
// is the preceding valid version. Unchanged objects are taken from it. The error is
// strictyaml.Errors with all errors.
func Validate(in Input, id Identity, before *DesiredState) (*DesiredState, error) {
	m, err := Decode(in.Data)
	if err != nil {
		return nil, err
	}
	v := validator{in: in, id: id, m: m, before: map[types.UID]*corev1.Pod{},
		out: &DesiredState{Objects: map[ObjectKey]plan.Object{}, lines: map[any]int{}, Warnings: m.Warnings}}
	if before != nil {
		for _, pod := range before.Pods {
			v.before[pod.UID] = pod
		}
	}
	for _, pod := range m.Pods {
		v.pod(pod)
	}
	for _, w := range m.Workloads {
		v.workload(w)
	}
	for _, s := range m.Services {
		v.service(s, before)
	}
	for _, c := range m.ConfigMaps {
		v.configMap(c, before)
	}
	for _, s := range m.Secrets {
		v.secret(s, before)
	}
	if len(v.errs) > 0 {
		return nil, v.errs
	}
	for i := range v.out.Warnings {
		v.out.Warnings[i].File = in.Path
	}
	return v.out, nil
}

type validator struct {
	in     Input
	id     Identity
	m      *Manifest
	before map[types.UID]*corev1.Pod
	out    *DesiredState
	errs   strictyaml.Errors
}

// complain adds validation errors. podspec keeps values of Secrets out of them.
func (v *validator) complain(object any, errs field.ErrorList) {
	for _, e := range errs {
		v.errs = append(
			v.errs,
			&strictyaml.Error{Line: v.m.Line(object, e.Field), Field: e.Field, Message: e.ErrorBody()},
		)
	}
}

func (v *validator) warn(pod types.NamespacedName, line int, message string) {
	v.out.Warnings = append(v.out.Warnings, Warning{Pod: pod, Line: line, Message: message})
}

func (v *validator) pod(pod *corev1.Pod) {
	line := v.m.Line(pod, "metadata.name")
	warnings := v.id.apply(pod, v.m.written[pod], v.in.Modified, v.in.Now)
	podspec.SetDefaults(pod)
	ignored, rejected := podspec.UnsupportedFields(pod)
	if errs := append(podspec.Validate(pod), rejected...); len(errs) > 0 {
		v.complain(pod, errs)
		return
	}
	key := types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name}
	for _, w := range append(warnings, ignored...) {
		v.warn(key, line, w)
	}
	if before := v.before[pod.UID]; before != nil {
		pod = continueFrom(before, pod)
	} else if v.in.PreviousPod != nil {
		restoreIdentity(v.in.PreviousPod(pod.UID), pod)
	}
	v.out.Pods = append(v.out.Pods, pod)
	v.out.lines[key] = line
}

func (v *validator) configMap(c *corev1.ConfigMap, before *DesiredState) {
	podspec.SetConfigMapDefaults(c)
	if errs := podspec.ValidateConfigMap(c); len(errs) > 0 {
		v.complain(c, errs)
		return
	}
	key := ObjectKey{plan.ConfigMap, types.NamespacedName{Namespace: c.Namespace, Name: c.Name}}
	version := contentVersion(key.Kind, c.Data, c.BinaryData)
	c.ResourceVersion = version
	v.object(
		key,
		plan.Object{Version: plan.Version{Version: version}, ConfigMap: c},
		v.m.Line(c, "metadata.name"),
		before,
	)
}

func (v *validator) secret(s *corev1.Secret, before *DesiredState) {
	podspec.SetSecretDefaults(s)
	if errs := podspec.ValidateSecret(s); len(errs) > 0 {
		v.complain(s, errs)
		return
	}
	key := ObjectKey{plan.Secret, types.NamespacedName{Namespace: s.Namespace, Name: s.Name}}
	version := contentVersion(key.Kind, s.Type, s.Data)
	s.ResourceVersion = version
	v.object(
		key,
		plan.Object{Version: plan.Version{Version: version}, Secret: s},
		v.m.Line(s, "metadata.name"),
		before,
	)
}

// object adds an object, or the preceding one if the content is the same.
func (v *validator) object(key ObjectKey, o plan.Object, line int, before *DesiredState) {
	if before != nil {
		if old, ok := before.Objects[key]; ok && old.Version == o.Version {
			o = old
		}
	}
	v.out.Objects[key] = o
	v.out.lines[key] = line
}

// APIError returns the error of Validate as an API error. Several errors are separate causes, in the
// order of the manifest.
func APIError(err error) error {
	all, ok := errors.AsType[strictyaml.Errors](err)
	if !ok || len(all) < 2 {
		return apierrors.NewBadRequest(err.Error())
	}
	out := apierrors.NewBadRequest(fmt.Sprintf("the manifest has %d errors", len(all)))
	out.ErrStatus.Details = &metav1.StatusDetails{}
	for _, e := range slices.SortedStableFunc(
		slices.Values(all), func(x, y *strictyaml.Error) int { return x.Line - y.Line },
	) {
		out.ErrStatus.Details.Causes = append(out.ErrStatus.Details.Causes,
			metav1.StatusCause{Type: metav1.CauseTypeFieldValueInvalid, Field: e.Field, Message: e.Error()})
	}
	return out
}
