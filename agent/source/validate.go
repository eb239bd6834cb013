package source

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"berth/agent/plan"
	"berth/internal/strictyaml"
	"berth/podspec"
)

// DesiredState is the validated content of one file. It is immutable.
type DesiredState struct {
	Pods     []*corev1.Pod
	Objects  map[ObjectKey]plan.Object
	Warnings []Warning

	lines map[any]int // line of its name, by object
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
	j := validation{in: in, id: id, m: m, before: map[types.UID]*corev1.Pod{},
		out: &DesiredState{Objects: map[ObjectKey]plan.Object{}, lines: map[any]int{}, Warnings: m.Warnings}}
	if before != nil {
		for _, pod := range before.Pods {
			j.before[pod.UID] = pod
		}
	}
	for _, pod := range m.Pods {
		j.pod(pod)
	}
	for _, c := range m.ConfigMaps {
		j.configMap(c, before)
	}
	for _, s := range m.Secrets {
		j.secret(s, before)
	}
	if len(j.errs) > 0 {
		return nil, j.errs
	}
	for i := range j.out.Warnings {
		j.out.Warnings[i].File = in.Path
	}
	return j.out, nil
}

type validation struct {
	in     Input
	id     Identity
	m      *Manifest
	before map[types.UID]*corev1.Pod
	out    *DesiredState
	errs   strictyaml.Errors
}

// complain adds validation errors. podspec keeps values of Secrets out of them.
func (j *validation) complain(object any, errs field.ErrorList) {
	for _, e := range errs {
		j.errs = append(
			j.errs,
			&strictyaml.Error{Line: j.m.Line(object, e.Field), Field: e.Field, Message: e.ErrorBody()},
		)
	}
}

func (j *validation) warn(pod types.NamespacedName, line int, message string) {
	j.out.Warnings = append(j.out.Warnings, Warning{Pod: pod, Line: line, Message: message})
}

func (j *validation) pod(pod *corev1.Pod) {
	line := j.m.Line(pod, "metadata.name")
	warnings := j.id.apply(pod, j.m.written[pod], j.in.Modified, j.in.Now)
	podspec.SetDefaults(pod)
	inert, refused := podspec.UnsupportedFields(pod)
	if errs := append(podspec.Validate(pod), refused...); len(errs) > 0 {
		j.complain(pod, errs)
		return
	}
	key := types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name}
	for _, w := range append(warnings, inert...) {
		j.warn(key, line, w)
	}
	if before := j.before[pod.UID]; before != nil {
		pod = continueFrom(before, pod)
	} else if j.in.PreviousPod != nil {
		restoreIdentity(j.in.PreviousPod(pod.UID), pod)
	}
	j.out.Pods = append(j.out.Pods, pod)
	j.out.lines[key] = line
}

func (j *validation) configMap(c *corev1.ConfigMap, before *DesiredState) {
	podspec.SetConfigMapDefaults(c)
	if errs := podspec.ValidateConfigMap(c); len(errs) > 0 {
		j.complain(c, errs)
		return
	}
	key := ObjectKey{plan.ConfigMap, types.NamespacedName{Namespace: c.Namespace, Name: c.Name}}
	version := contentVersion(key.Kind, c.Data, c.BinaryData)
	c.ResourceVersion = version
	j.object(
		key,
		plan.Object{Version: plan.Version{Version: version}, ConfigMap: c},
		j.m.Line(c, "metadata.name"),
		before,
	)
}

func (j *validation) secret(s *corev1.Secret, before *DesiredState) {
	podspec.SetSecretDefaults(s)
	if errs := podspec.ValidateSecret(s); len(errs) > 0 {
		j.complain(s, errs)
		return
	}
	key := ObjectKey{plan.Secret, types.NamespacedName{Namespace: s.Namespace, Name: s.Name}}
	version := contentVersion(key.Kind, s.Type, s.Data)
	s.ResourceVersion = version
	j.object(
		key,
		plan.Object{Version: plan.Version{Version: version}, Secret: s},
		j.m.Line(s, "metadata.name"),
		before,
	)
}

// object adds an object, or the preceding one if the content is the same.
func (j *validation) object(key ObjectKey, o plan.Object, line int, before *DesiredState) {
	if before != nil {
		if old, ok := before.Objects[key]; ok && old.Version == o.Version {
			o = old
		}
	}
	j.out.Objects[key] = o
	j.out.lines[key] = line
}
