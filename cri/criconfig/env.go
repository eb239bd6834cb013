package criconfig

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/agent/plan"
	"berth/podspec"
)

// Env returns the container's environment in the order in which the runtime sets it: variables of
// device plugins, sorted by name, then of services, then envFrom, each source sorted by key, then
// env. Each name occurs once, at the position of its last definition. The warnings name keys of
// envFrom that were skipped, and why. Errors name the variable, never its value.
func Env(node Node, pod *corev1.Pod, c *corev1.Container,
	setup plan.ContainerConfig) ([]*runtimeapi.KeyValue, []Warning, error) {
	e := &environment{values: map[string]string{}}
	for _, name := range slices.Sorted(maps.Keys(setup.Devices.Envs)) {
		if why := invalidEnvName(name); why != "" {
			return nil, nil, invalid(reasonContainer, "env %q of a device plugin: name %s", name, why)
		}
		e.set(name, setup.Devices.Envs[name])
	}
	e.addServices(pod, setup.Objects)
	for i := range c.EnvFrom {
		if err := e.addSource(pod.Namespace, &c.EnvFrom[i], setup.Objects); err != nil {
			return nil, nil, err
		}
	}
	for i := range c.Env {
		v := &c.Env[i]
		value, ok, err := envValue(node, pod, c, v, setup, e.lookup)
		if err != nil {
			return nil, nil, err
		}
		if !ok {
			continue
		}
		if why := invalidEnvName(v.Name); why != "" {
			return nil, nil, invalid(reasonContainer, "env %q: name %s", v.Name, why)
		}
		e.set(v.Name, value)
	}
	out := make([]*runtimeapi.KeyValue, 0, len(e.order))
	for _, name := range e.order {
		value := []byte(e.values[name])
		if bytes.IndexByte(value, 0) >= 0 {
			return nil, nil, invalid(reasonContainer, "env %q: the value has a NUL byte, which no environment can hold",
				name)
		}
		out = append(out, &runtimeapi.KeyValue{Key: name, Value: value})
	}
	return out, e.warnings, nil
}

// environment is an ordered map.
type environment struct {
	order    []string
	values   map[string]string
	warnings []Warning
}

func (e *environment) lookup(name string) (string, bool) {
	v, ok := e.values[name]
	return v, ok
}

func (e *environment) set(name, value string) {
	if _, again := e.values[name]; again {
		e.order = slices.DeleteFunc(e.order, func(n string) bool { return n == name })
	}
	e.values[name] = value
	e.order = append(e.order, name)
}

// addServices sets the variables for the services in the pod's namespace and the API server. All
// other sources override them.
func (e *environment) addServices(pod *corev1.Pod, objects plan.Objects) {
	for _, r := range podspec.References(pod) {
		if r.Kind == podspec.KindServices {
			for _, v := range objects[plan.Ref{Kind: plan.Services, Name: r.Name}].Env {
				e.set(v.Name, v.Value)
			}
		}
	}
}

// addSource sets a variable for each key of a ConfigMap or Secret.
func (e *environment) addSource(namespace string, from *corev1.EnvFromSource, objects plan.Objects) error {
	var data map[string]string
	var what string
	switch {
	case from.ConfigMapRef != nil:
		ref := from.ConfigMapRef
		what = "ConfigMap " + namespace + "/" + ref.Name
		object, err := lookupObject(objects, plan.Ref{Kind: plan.ConfigMap, Name: ref.Name}, isTrue(ref.Optional))
		if err != nil {
			return err
		}
		data = objectData(object)
	case from.SecretRef != nil:
		ref := from.SecretRef
		what = "Secret " + namespace + "/" + ref.Name
		object, err := lookupObject(objects, plan.Ref{Kind: plan.Secret, Name: ref.Name}, isTrue(ref.Optional))
		if err != nil {
			return err
		}
		data = objectData(object)
	default:
		return invalid(reasonContainer, "envFrom: want a configMapRef or a secretRef")
	}
	var bad []string
	for _, key := range slices.Sorted(maps.Keys(data)) {
		name := from.Prefix + key
		if invalidEnvName(name) != "" {
			bad = append(bad, fmt.Sprintf("%q", name))
			continue
		}
		e.set(name, data[key])
	}
	if len(bad) > 0 {
		e.warnings = append(e.warnings, warn("InvalidEnvironmentVariableNames",
			"keys [%s] from the envFrom source %s were skipped since they are invalid environment variable names",
			strings.Join(bad, ", "), what))
	}
	return nil
}

// objectData returns the data that an object provides for envFrom: the data of a ConfigMap without
// its binary data, or all data of a Secret.
func objectData(o plan.Object) map[string]string {
	switch {
	case o.ConfigMap != nil:
		return o.ConfigMap.Data
	case o.Secret != nil:
		out := make(map[string]string, len(o.Secret.Data))
		for k, v := range o.Secret.Data {
			out[k] = string(v)
		}
		return out
	}
	return nil
}

// envValue returns the value of a variable. ok is false if its source is optional and missing. In
// that case the variable is not set.
func envValue(node Node, pod *corev1.Pod, c *corev1.Container, v *corev1.EnvVar, setup plan.ContainerConfig,
	lookup func(string) (string, bool)) (value string, ok bool, err error) {
	from := v.ValueFrom
	switch {
	case from == nil:
		return podspec.Expand(v.Value, lookup), true, nil
	case from.FieldRef != nil:
		value, err = podspec.FieldRef(pod, from.FieldRef.FieldPath, downwardFacts(node, pod, setup))
	case from.ResourceFieldRef != nil:
		value, err = podspec.ResourceRef(pod, c, from.ResourceFieldRef, allocatable(node, setup))
	case from.ConfigMapKeyRef != nil:
		return configMapKey(pod.Namespace, from.ConfigMapKeyRef, setup.Objects)
	case from.SecretKeyRef != nil:
		return secretKey(pod.Namespace, from.SecretKeyRef, setup.Objects)
	case from.FileKeyRef != nil:
		return fileKey(v.Name, from.FileKeyRef, setup.Files)
	default:
		return "", false, invalid(reasonContainer, "env %q: valueFrom names no source", v.Name)
	}
	if err != nil {
		return "", false, invalid(reasonContainer, "env %q: %w", v.Name, err)
	}
	return value, true, nil
}

func configMapKey(namespace string, ref *corev1.ConfigMapKeySelector, objects plan.Objects) (string, bool, error) {
	optional := isTrue(ref.Optional)
	object, err := lookupObject(objects, plan.Ref{Kind: plan.ConfigMap, Name: ref.Name}, optional)
	if err != nil {
		return "", false, err
	}
	if object.ConfigMap != nil {
		if value, ok := object.ConfigMap.Data[ref.Key]; ok {
			return value, true, nil
		}
	}
	if optional {
		return "", false, nil
	}
	return "", false, missing(reasonContainer, "couldn't find key %s in ConfigMap %s/%s", ref.Key, namespace, ref.Name)
}

func secretKey(namespace string, ref *corev1.SecretKeySelector, objects plan.Objects) (string, bool, error) {
	optional := isTrue(ref.Optional)
	object, err := lookupObject(objects, plan.Ref{Kind: plan.Secret, Name: ref.Name}, optional)
	if err != nil {
		return "", false, err
	}
	if object.Secret != nil {
		if value, ok := object.Secret.Data[ref.Key]; ok {
			return string(value), true, nil
		}
	}
	if optional {
		return "", false, nil
	}
	return "", false, missing(reasonContainer, "couldn't find key %s in Secret %s/%s", ref.Key, namespace, ref.Name)
}

// lookupObject returns the referenced object. An optional object that is missing is empty. An
// object that could not be read is an error even if it is optional, because it may exist.
func lookupObject(objects plan.Objects, ref plan.Ref, optional bool) (plan.Object, error) {
	object, ok := objects[ref]
	kind := strings.ToLower(string(ref.Kind))
	switch {
	case ok && object.Err != "":
		return plan.Object{}, missing(reasonContainer, "%s %q: %s", kind, ref.Name, object.Err)
	case ok && !object.Missing && (object.ConfigMap != nil || object.Secret != nil):
		return object, nil
	case optional:
		return plan.Object{}, nil
	}
	return plan.Object{}, missing(reasonContainer, "%s %q not found", kind, ref.Name)
}

// invalidEnvName returns why a name cannot be an environment variable. Empty: it can. Shells are
// stricter, but not every program is a shell.
func invalidEnvName(name string) string {
	if name == "" {
		return "is empty"
	}
	for _, r := range name {
		if r < ' ' || r > '~' || r == '=' {
			return "may hold printable ASCII characters other than \"=\" only"
		}
	}
	return ""
}

func downwardFacts(node Node, pod *corev1.Pod, setup plan.ContainerConfig) podspec.RuntimeInfo {
	f := podspec.RuntimeInfo{NodeName: node.Name, HostIPs: setup.HostIPs, PodIPs: setup.Sandbox.IPs}
	if pod.Spec.HostNetwork {
		f.PodIPs = setup.HostIPs
	}
	return f
}

func allocatable(node Node, setup plan.ContainerConfig) corev1.ResourceList {
	if len(setup.Allocatable) > 0 {
		return setup.Allocatable
	}
	return node.Allocatable
}

// LookupEnv returns a function that looks up variables by name.
func LookupEnv(vars []*runtimeapi.KeyValue) func(name string) (value string, found bool) {
	byName := make(map[string]string, len(vars))
	for _, v := range vars {
		byName[v.Key] = string(v.Value)
	}
	return func(name string) (string, bool) {
		v, ok := byName[name]
		return v, ok
	}
}
