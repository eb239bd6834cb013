package podspec

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// secretType validates the keys that the type of a Secret requires.
func (k *validator) secretType(s *corev1.Secret, data *field.Path) {
	need := func(keys ...string) {
		for _, key := range keys {
			if _, ok := s.Data[key]; !ok {
				k.required(data.Key(key), "")
			}
		}
	}
	isJSON := func(key string) {
		if value, ok := s.Data[key]; !ok {
			k.required(data.Key(key), "")
		} else if !json.Valid(value) {
			k.invalid(data.Key(key), "<secret contents redacted>", "must be JSON")
		}
	}
	switch s.Type {
	case corev1.SecretTypeServiceAccountToken:
		if s.Annotations[corev1.ServiceAccountNameKey] == "" {
			k.required(field.NewPath("metadata", "annotations").Key(corev1.ServiceAccountNameKey), "")
		}
	case corev1.SecretTypeDockercfg:
		isJSON(corev1.DockerConfigKey)
	case corev1.SecretTypeDockerConfigJson:
		isJSON(corev1.DockerConfigJsonKey)
	case corev1.SecretTypeBasicAuth:
		_, user := s.Data[corev1.BasicAuthUsernameKey]
		_, password := s.Data[corev1.BasicAuthPasswordKey]
		if !user && !password {
			need(corev1.BasicAuthUsernameKey, corev1.BasicAuthPasswordKey)
		}
	case corev1.SecretTypeSSHAuth:
		if len(s.Data[corev1.SSHAuthPrivateKey]) == 0 {
			k.required(data.Key(corev1.SSHAuthPrivateKey), "")
		}
	case corev1.SecretTypeTLS:
		need(corev1.TLSCertKey, corev1.TLSPrivateKeyKey)
	}
}

// appArmorAnnotations validates the deprecated AppArmor annotations.
func (k *validator) appArmorAnnotations(at *field.Path) {
	for _, key := range slices.Sorted(maps.Keys(k.pod.Annotations)) {
		value := k.pod.Annotations[key]
		name, ok := strings.CutPrefix(key, corev1.DeprecatedAppArmorBetaContainerAnnotationKeyPrefix)
		if !ok {
			continue
		}
		found := false
		for c := range containersOf(k.spec) {
			found = found || c.Name == name
		}
		if !found {
			k.invalid(at.Key(key), name, "container not found")
		}
		if value != "" && appArmorProfile(value) == nil {
			k.invalid(
				at.Key(key),
				value,
				"must be runtime/default, unconfined or localhost/ followed by a profile name",
			)
		}
	}
}
