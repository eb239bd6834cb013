package content

import (
	"maps"

	corev1 "k8s.io/api/core/v1"

	"berth/agent/plan"
)

func secretVolume(src *corev1.SecretVolumeSource) keyed {
	return keyed{
		name: src.SecretName, items: src.Items, optional: src.Optional != nil && *src.Optional,
		defaults: defaults{mode: src.DefaultMode, uid: src.DefaultUser},
	}
}

// secret adds the files of a Secret. stringData is for a Secret that came
// from a file and was never stored by a server, which would have folded it in.
func (b *builder) secret(src keyed) error {
	obj, err := b.object(plan.Secret, "secret", src)
	if err != nil {
		return err
	}
	data := map[string][]byte{}
	if obj != nil && obj.Secret != nil {
		maps.Copy(data, obj.Secret.Data)
		for k, v := range obj.Secret.StringData {
			data[k] = []byte(v)
		}
	}
	return b.keys(data, src, "references non-existent secret key: %s")
}
