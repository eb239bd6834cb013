package podspec

import (
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// PodCertificateName returns the name of an ObjectRef of KindPodCertificate: each source of a pod has its own key.
func PodCertificateName(volume string, source int) string { return volume + "/" + strconv.Itoa(source) }

// PodCertificateOf returns the source with a name of PodCertificateName, or nil.
func PodCertificateOf(pod *corev1.Pod, name string) *corev1.PodCertificateProjection {
	volume, text, _ := strings.Cut(name, "/")
	source, err := strconv.Atoi(text)
	for i := range pod.Spec.Volumes {
		v := &pod.Spec.Volumes[i]
		if err == nil && v.Name == volume && v.Projected != nil && source < len(v.Projected.Sources) {
			return v.Projected.Sources[source].PodCertificate
		}
	}
	return nil
}
