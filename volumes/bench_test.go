package volumes

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// BenchmarkFiveVolumes sets up the volumes of a pod, looks, and takes them
// down, with none and with a thousand other mounts on the host. p99-ms is the
// set-up alone; it should be below 10 and the same in both.
func BenchmarkFiveVolumes(b *testing.B) {
	for _, others := range []int{0, 1000} {
		b.Run(fmt.Sprintf("mounts=%d", others), func(b *testing.B) {
			v := newVolumes(b)
			for i := range others {
				at := filepath.Join(v.RootDir, "others", strconv.Itoa(i))
				must(b, os.MkdirAll(at, 0o750))
				must(b, unix.Mount(at, at, "", unix.MS_BIND, ""))
			}
			objs := objectsWith(map[string]string{"a": "1", "b": "2"})
			var took []time.Duration
			n := 0
			for b.Loop() {
				n++
				pod := newPod(emptyDirVol("disk", corev1.EmptyDirVolumeSource{}), emptyDirVol("memory", corev1.EmptyDirVolumeSource{Medium: corev1.StorageMediumMemory}),
					configMapVol("cfg"), secretVol("key"), projectedVol("all"))
				pod.UID = types.UID("pod-" + strconv.Itoa(n))
				began := time.Now()
				must(b, v.MakeDirs(b.Context(), pod))
				for _, vol := range pod.Spec.Volumes {
					mustMount(b, v, pod, vol.Name, "v1", objs)
				}
				took = append(took, time.Since(began))
				if _, vols, err := v.Look(b.Context(), pod); err != nil || len(vols) != 5 {
					b.Fatal(vols, err)
				}
				for _, vol := range pod.Spec.Volumes {
					must(b, v.Unmount(b.Context(), pod, vol.Name))
				}
				must(b, v.RemoveDirs(b.Context(), pod))
			}
			slices.Sort(took)
			b.ReportMetric(float64(took[len(took)/2].Microseconds())/1000, "p50-ms")
			b.ReportMetric(float64(took[len(took)*99/100].Microseconds())/1000, "p99-ms")
		})
	}
}
