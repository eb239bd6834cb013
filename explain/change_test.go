package explain

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"berth/nodeapi"
)

func TestWhatAManifestChanges(t *testing.T) {
	pod := func(uid types.UID, initImage, image string) *corev1.Pod {
		p := &corev1.Pod{}
		p.UID = uid
		p.Spec.InitContainers = []corev1.Container{{Name: "i", Image: initImage}}
		p.Spec.Containers = []corev1.Container{{Name: "c", Image: image}}
		return p
	}
	for what, c := range map[string]struct {
		was, pod *corev1.Pod
		want     nodeapi.Change
	}{
		"a name that is free makes a pod":         {nil, pod("1", "i", "c"), nodeapi.Create},
		"another UID takes the place":             {pod("1", "i", "c"), pod("2", "i", "c"), nodeapi.Replace},
		"also with another image":                 {pod("1", "i", "c"), pod("2", "i", "d"), nodeapi.Replace},
		"the same stays":                          {pod("1", "i", "c"), pod("1", "i", "c"), nodeapi.Keep},
		"another image is changed in place":       {pod("1", "i", "c"), pod("1", "i", "d"), nodeapi.Update},
		"that of an init container too":           {pod("1", "i", "c"), pod("1", "j", "c"), nodeapi.Update},
		"two that swap their images are a change": {pod("1", "i", "c"), pod("1", "c", "i"), nodeapi.Update},
	} {
		if got := Change(c.was, c.pod); got != c.want {
			t.Errorf("%s: %v", what, got)
		}
	}
}
