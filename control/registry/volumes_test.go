package registry

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestVolumePhaseTransitionTime(t *testing.T) {
	t.Parallel()
	first, given := metav1.Unix(1000, 0), metav1.Unix(2000, 0)
	volume := func(phase corev1.PersistentVolumePhase, at *metav1.Time) *corev1.PersistentVolume {
		return &corev1.PersistentVolume{
			Status: corev1.PersistentVolumeStatus{Phase: phase, LastPhaseTransitionTime: at}}
	}
	old := volume(corev1.VolumeAvailable, &first)
	for name, tc := range map[string]struct {
		updated *corev1.PersistentVolume
		want    int64 // 0: the current time
	}{
		"same phase":                         {volume(corev1.VolumeAvailable, nil), 1000},
		"other phase":                        {volume(corev1.VolumeBound, &first), 0},
		"other phase, time is not known":     {volume(corev1.VolumeBound, nil), 0},
		"other phase with the client's time": {volume(corev1.VolumeBound, &given), 2000},
	} {
		prepareVolumeStatus(t.Context(), tc.updated, old)
		got := tc.updated.Status.LastPhaseTransitionTime
		if got == nil || tc.want != 0 && got.Unix() != tc.want || tc.want == 0 && got.Unix() <= given.Unix() {
			t.Errorf("%s: got %v", name, got)
		}
	}
}
