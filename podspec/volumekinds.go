package podspec

import (
	"reflect"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// volumeKinds gives the names, as in a manifest, of the sources that a volume
// has: one, if it is valid. The list of all kinds is the API's own.
func volumeKinds(v *corev1.VolumeSource) []string {
	var out []string
	value := reflect.ValueOf(*v)
	for i := range value.NumField() {
		if f := value.Field(i); f.Kind() == reflect.Pointer && !f.IsNil() {
			name, _, _ := strings.Cut(value.Type().Field(i).Tag.Get("json"), ",")
			out = append(out, name)
		}
	}
	return out
}
