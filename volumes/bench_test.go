package volumes

import (
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// BenchmarkFiveVolumes sets up, observes and removes the volumes of a pod, alternating between no
// and 1000 other mounts on the host, because absolute times vary on a shared machine. It reports
// the median and the 99th percentile of the set-up time in ms, the CPU time, and the ratio of the
// medians. The ratio should be near 1, and p99-ms below 10 on an otherwise idle machine.
func BenchmarkFiveVolumes(b *testing.B) {
	const turn, others = 25, 1000
	v := newVolumes(b)
	runtime.LockOSThread() // CPU time is counted by thread
	defer runtime.UnlockOSThread()
	var quiet, full samples
	n := 0
	for b.Loop() {
		now := &quiet
		if n/turn%2 == 1 {
			now = &full
		}
		if n%turn == 0 {
			b.StopTimer()
			crowd(b, v.RootDir, others, now == &full)
			b.StartTimer()
		}
		n++
		now.add(b, v, "pod-"+strconv.Itoa(n))
	}
	crowd(b, v.RootDir, others, false)
	quiet.report(b, "")
	if len(full.took) > 0 {
		full.report(b, "-1000-mounts")
		b.ReportMetric(float64(median(full.took))/float64(median(quiet.took)), "p50-ratio")
		b.ReportMetric(float64(median(full.cpu))/float64(median(quiet.cpu)), "cpu-ratio")
	}
}

// crowd adds or removes other mounts on the host.
func crowd(b *testing.B, root string, n int, there bool) {
	b.Helper()
	for i := range n {
		at := filepath.Join(root, "others", strconv.Itoa(i))
		must(b, os.MkdirAll(at, 0o750))
		is, err := isMount(at)
		must(b, err)
		switch {
		case there && !is:
			must(b, unix.Mount(at, at, "", unix.MS_BIND, ""))
		case !there && is:
			must(b, unix.Unmount(at, 0))
		}
	}
}

// samples are the times of set-ups.
type samples struct{ took, cpu []time.Duration }

// add sets up and removes a pod with five volumes.
func (s *samples) add(b *testing.B, v *Volumes, uid string) {
	b.Helper()
	objs := objectsWith(map[string]string{"a": "1", "b": "2"})
	pod := newPod(
		emptyDirVol("disk", corev1.EmptyDirVolumeSource{}),
		emptyDirVol("memory", corev1.EmptyDirVolumeSource{Medium: corev1.StorageMediumMemory}),
		configMapVol("cfg"),
		secretVol("key"),
		projectedVol("all"),
	)
	pod.UID = types.UID(uid)
	began, cpu := time.Now(), cpuTime(b)
	must(b, v.CreateDirs(b.Context(), pod))
	for _, vol := range pod.Spec.Volumes {
		mustMount(b, v, pod, vol.Name, "v1", objs)
	}
	s.took, s.cpu = append(s.took, time.Since(began)), append(s.cpu, cpuTime(b)-cpu)
	if _, vols, err := v.Observe(b.Context(), pod); err != nil || len(vols) != 5 {
		b.Fatal(vols, err)
	}
	for _, vol := range pod.Spec.Volumes {
		must(b, v.Unmount(b.Context(), pod, vol.Name))
	}
	must(b, v.RemoveDirs(b.Context(), pod))
}

func (s *samples) report(b *testing.B, of string) {
	ms := func(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
	b.ReportMetric(ms(median(s.took)), "p50-ms"+of)
	b.ReportMetric(ms(s.took[len(s.took)*99/100]), "p99-ms"+of)
	b.ReportMetric(ms(median(s.cpu)), "cpu-ms"+of)
}

func median(d []time.Duration) time.Duration {
	slices.Sort(d)
	return d[len(d)/2]
}

// cpuTime returns the CPU time of this thread.
func cpuTime(b *testing.B) time.Duration {
	var u unix.Rusage
	must(b, unix.Getrusage(unix.RUSAGE_THREAD, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
