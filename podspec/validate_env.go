package podspec

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// maxEnvFileKey is the maximum length of a key of an environment file.
const maxEnvFileKey = 128

// env validates env and envFrom of a container.
func (k *validator) env(at *field.Path, c *corev1.Container) {
	for i, e := range c.Env {
		path := at.Child("env").Index(i)
		k.name(path.Child("name"), e.Name, validation.IsRelaxedEnvVarName)
		if e.ValueFrom != nil {
			k.envSource(path.Child("valueFrom"), &e)
		}
	}
	for i, e := range c.EnvFrom {
		path := at.Child("envFrom").Index(i)
		if e.Prefix != "" {
			k.each(path.Child("prefix"), e.Prefix, validation.IsRelaxedEnvVarName(e.Prefix))
		}
		if !k.exactlyOne(path, "", "`configMapRef`, `secretRef`", e.ConfigMapRef != nil, e.SecretRef != nil) {
			continue
		}
		if e.ConfigMapRef != nil {
			k.name(path.Child("configMapRef", "name"), e.ConfigMapRef.Name, validation.IsDNS1123Subdomain)
		}
		if e.SecretRef != nil {
			k.name(path.Child("secretRef", "name"), e.SecretRef.Name, validation.IsDNS1123Subdomain)
		}
	}
}

func (k *validator) envSource(at *field.Path, e *corev1.EnvVar) {
	from := e.ValueFrom
	if e.Value != "" {
		k.invalid(at, "", "may not be specified when `value` is not empty")
	}
	if !k.exactlyOne(at, "", "`fieldRef`, `resourceFieldRef`, `configMapKeyRef`, `secretKeyRef`, `fileKeyRef`",
		from.FieldRef != nil, from.ResourceFieldRef != nil, from.ConfigMapKeyRef != nil,
		from.SecretKeyRef != nil, from.FileKeyRef != nil) {
		return
	}
	switch {
	case from.FieldRef != nil:
		k.fieldRef(at.Child("fieldRef"), from.FieldRef, envFields)
	case from.ResourceFieldRef != nil:
		k.resourceFieldRef(at.Child("resourceFieldRef"), from.ResourceFieldRef, false)
	case from.ConfigMapKeyRef != nil:
		k.keyRef(at.Child("configMapKeyRef"), from.ConfigMapKeyRef.Name, from.ConfigMapKeyRef.Key)
	case from.SecretKeyRef != nil:
		k.keyRef(at.Child("secretKeyRef"), from.SecretKeyRef.Name, from.SecretKeyRef.Key)
	case from.FileKeyRef != nil:
		k.fileKeyRef(at.Child("fileKeyRef"), from.FileKeyRef)
	}
}

func (k *validator) keyRef(at *field.Path, name, key string) {
	k.name(at.Child("name"), name, validation.IsDNS1123Subdomain)
	k.name(at.Child("key"), key, validation.IsConfigMapKey)
}

func (k *validator) fileKeyRef(at *field.Path, ref *corev1.FileKeySelector) {
	k.name(at.Child("key"), ref.Key, validation.IsRelaxedEnvVarName)
	if len(ref.Key) > maxEnvFileKey {
		k.add(field.TooLong(at.Child("key"), ref.Key, maxEnvFileKey))
	}
	k.relativePath(at.Child("path"), ref.Path)
	switch v := k.volume(ref.VolumeName); {
	case ref.VolumeName == "":
		k.required(at.Child("volumeName"), "")
	case v == nil:
		k.notFound(at.Child("volumeName"), ref.VolumeName)
	case v.EmptyDir == nil:
		k.invalid(at.Child("volumeName"), ref.VolumeName, "must be an emptyDir volume")
	}
}

// Fields of a pod that the downward API exposes. Environment variables have a single value. Files can
// also contain maps, and are updated.
var (
	envFields = []string{
		"metadata.name", "metadata.namespace", "metadata.uid", "spec.nodeName", "spec.serviceAccountName",
		"status.hostIP", "status.hostIPs", "status.podIP", "status.podIPs",
	}
	fileFields = []string{
		"metadata.annotations",
		"metadata.labels",
		"metadata.name",
		"metadata.namespace",
		"metadata.uid",
	}
)

func (k *validator) fieldRef(at *field.Path, ref *corev1.ObjectFieldSelector, fields []string) {
	if ref.APIVersion == "" {
		k.required(at.Child("apiVersion"), "")
	} else if ref.APIVersion != "v1" {
		k.add(field.NotSupported(at.Child("apiVersion"), ref.APIVersion, []string{"v1"}))
	}
	path := at.Child("fieldPath")
	if ref.FieldPath == "" {
		k.required(path, "")
		return
	}
	if from, key, ok := mapKey(ref.FieldPath); ok {
		switch from {
		case "metadata.labels":
			k.each(path, key, validation.IsQualifiedName(key))
		case "metadata.annotations":
			k.each(path, key, validation.IsQualifiedName(strings.ToLower(key)))
		default:
			k.invalid(path, ref.FieldPath, "only metadata.labels and metadata.annotations support a key")
		}
		return
	}
	if !slices.Contains(fields, ref.FieldPath) {
		k.add(field.NotSupported(path, ref.FieldPath, fields))
	}
}

// resourceFieldRef validates a reference to a resource of a container. Files require a container
// name.
func (k *validator) resourceFieldRef(at *field.Path, ref *corev1.ResourceFieldSelector, inFile bool) {
	switch {
	case ref.ContainerName == "" && inFile:
		k.required(at.Child("containerName"), "")
	case ref.ContainerName != "" && !k.hasContainer(ref.ContainerName):
		k.notFound(at.Child("containerName"), ref.ContainerName)
	}
	path := at.Child("resource")
	if ref.Resource == "" {
		k.required(path, "")
		return
	}
	list, name, _ := strings.Cut(ref.Resource, ".")
	if list != "limits" && list != "requests" || !downwardResource(corev1.ResourceName(name)) {
		k.add(field.NotSupported(path, ref.Resource, []string{
			"limits.cpu", "limits.memory", "limits.ephemeral-storage", "limits.hugepages-<size>",
			"requests.cpu", "requests.memory", "requests.ephemeral-storage", "requests.hugepages-<size>",
		}))
		return
	}
	k.divisor(at.Child("divisor"), corev1.ResourceName(name), ref.Divisor)
}

// divisor validates the unit of a resource value. It defaults to 1.
func (k *validator) divisor(at *field.Path, name corev1.ResourceName, q resource.Quantity) {
	units := []string{"1", "1k", "1M", "1G", "1T", "1P", "1E", "1Ki", "1Mi", "1Gi", "1Ti", "1Pi", "1Ei"}
	if name == corev1.ResourceCPU {
		units = []string{"1m", "1"}
	}
	if q.IsZero() {
		return
	}
	if !slices.ContainsFunc(units, func(u string) bool { return q.Cmp(resource.MustParse(u)) == 0 }) {
		k.invalid(
			at,
			q.String(),
			"only divisor's values %s are supported with the %s resource",
			strings.Join(units, ", "),
			name,
		)
	}
}
