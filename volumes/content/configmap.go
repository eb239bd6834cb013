package content

import (
	"maps"

	corev1 "k8s.io/api/core/v1"

	"berth/agent/plan"
)

func configMapVolume(src *corev1.ConfigMapVolumeSource) keyed {
	return keyed{
		name: src.Name, items: src.Items, optional: src.Optional != nil && *src.Optional,
		defaults: defaults{mode: src.DefaultMode, uid: src.DefaultUser},
	}
}

// configMap adds the files of a ConfigMap: data and binaryData alike.
func (b *builder) configMap(src keyed) error {
	obj, err := b.object(plan.ConfigMap, "configmap", src)
	if err != nil {
		return err
	}
	data := map[string][]byte{}
	if obj != nil && obj.ConfigMap != nil {
		for k, v := range obj.ConfigMap.Data {
			data[k] = []byte(v)
		}
		maps.Copy(data, obj.ConfigMap.BinaryData)
	}
	return b.keys(data, src, "configmap references non-existent config key: %s")
}
