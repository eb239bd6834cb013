package e2e

import (
	"archive/tar"
	"bytes"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/test/hosts"
)

// pushIncompressibleImage pushes the testbox image with an additional layer of mib MiB of random data
// to the open registry. It returns the image reference.
func (s *Namespace) pushIncompressibleImage(name string, mib int) string {
	s.t.Helper()
	img := s.testbox()
	noise := make([]byte, mib<<20)
	_, _ = rand.Read(noise)
	var layer bytes.Buffer
	w := tar.NewWriter(&layer)
	err := w.WriteHeader(&tar.Header{Name: "noise", Mode: 0o644, Size: int64(len(noise))})
	if err == nil {
		_, err = w.Write(noise)
	}
	if err = errors.Join(err, w.Close()); err != nil {
		s.t.Fatal(err)
	}
	var withLayer v1.Image
	if withLayer, err = mutate.AppendLayers(img,
		static.NewLayer(layer.Bytes(), types.OCIUncompressedLayer)); err != nil {
		s.t.Fatal(err)
	}
	ref := s.ns + "/" + name + ":1"
	if err := s.Open.PushImage(s.t.Context(), "docker.io/"+ref, withLayer); err != nil {
		s.t.Fatal(err)
	}
	return ref
}

// imageDiskUsage returns the used bytes and the size of the node's image file system.
func (s *Namespace) imageDiskUsage() (used, size int) {
	s.t.Helper()
	var st unix.Statfs_t
	if err := unix.Statfs(s.Host.Root(), &st); err != nil {
		s.t.Fatal(err)
	}
	return int(st.Blocks-st.Bavail) * int(st.Bsize), int(st.Blocks) * int(st.Bsize)
}

// fillImageDisk allocates a file until target bytes of the image file system are in use. The cleanup
// of the test or release removes the file.
func (s *Namespace) fillImageDisk(target int) (release func()) {
	s.t.Helper()
	used, _ := s.imageDiskUsage()
	if used > target {
		s.t.Fatalf("%d bytes are already in use, want at most %d", used, target)
	}
	file, err := os.CreateTemp(s.Host.Root(), "ballast-")
	if err != nil {
		s.t.Fatal(err)
	}
	if err := errors.Join(unix.Fallocate(int(file.Fd()), 0, 0, int64(target-used)), file.Close()); err != nil {
		s.t.Fatal(err)
	}
	release = func() {
		if err := os.Remove(file.Name()); err != nil && !errors.Is(err, os.ErrNotExist) {
			s.t.Error(err)
		}
	}
	s.t.Cleanup(release)
	return release
}

// waitNoSpace waits until the pull of a container waits for disk space. It checks that the message,
// berth why and the event contain parts.
func (s *Namespace) waitNoSpace(name, container, ref string, parts ...string) {
	s.t.Helper()
	p := s.Waiting(name, container, "ImagePullNoSpace")
	s.contains("the message", status(p, container).State.Waiting.Message,
		append(parts, "waits for disk space", ref)...)
	s.waitWhy(name, append(parts, "ImagePullNoSpace", "waits for disk space")...)
	s.contains("the event", s.Event(name, `ImagePullNoSpace: the pull of image "`+ref+`" waits for disk space: `),
		parts...)
}

// TestPullOfTooLargeImageWaitsForDiskSpace fills the disk during two pulls: one fails while it
// downloads, the other while it unpacks. The pods report the reason, other pods keep running, and new
// pods with present images start. The pulls are not retried until there is enough space.
func TestPullOfTooLargeImageWaitsForDiskSpace(t *testing.T) {
	forEachNewNode(t, nodeOptions{CNI: true, Disk: "size=256m"}, func(t *testing.T, s *Namespace) {
		s.Pod("before", "containers:\n"+box("c", "", "sleep"))
		id := status(s.Running("before"), "c").ContainerID
		big := map[string]string{
			"packed": s.pushIncompressibleImage("packed", 48), "unpacked": s.pushIncompressibleImage("unpacked", 24),
		}
		_, size := s.imageDiskUsage()
		release := s.fillImageDisk(size - 36<<20)

		for name, ref := range big {
			s.Pod(name, "containers:\n"+imageBox("c", ref, "", "sleep"))
			p := s.Wait(name, "out of disk space", func(p *corev1.Pod) bool {
				w := status(p, "c").State.Waiting
				return w != nil && w.Reason == "ErrImagePull" && strings.Contains(w.Message, "no space left on device")
			})
			s.contains("the message", status(p, "c").State.Waiting.Message, ref)
			s.Event(name, `Failed: Failed to pull image "`+ref+`"`)
			s.waitNoSpace(name, "c", ref, "it takes more than ", "Mi are free")
		}

		// The failed pulls do not block other pods.
		s.Pod("beside", "containers:\n"+box("c", "", "sleep"))
		s.Running("beside")
		s.Exec("before", "c", "/bin/testbox", "print", "alive")

		release()
		for name := range big {
			s.Running(name)
		}
		for _, name := range []string{"before", "beside"} {
			if p := s.Running(name); status(p, "c").RestartCount != 0 || name == "before" &&
				status(p, "c").ContainerID != id {
				t.Errorf("pod was replaced or restarted: %s", brief(p))
			}
		}
	})
}

// TestScenario28_PullsWaitWhileImageDiskIsLow checks that below a threshold of imagefs only images of
// critical pods are pulled. Other pulls continue as soon as there is enough space, even before the
// pressure condition ends.
func TestScenario28_PullsWaitWhileImageDiskIsLow(t *testing.T) {
	o := nodeOptions{CNI: true, Disk: "size=256m", Config: map[string]any{
		"evictionSoft":                     map[string]string{"imagefs.available": "30%"},
		"evictionSoftGracePeriod":          map[string]string{"imagefs.available": "24h"},
		"evictionPressureTransitionPeriod": "24h",
	}}
	forEachNewNode(t, o, func(t *testing.T, s *Namespace) {
		s.Pod("web", "containers:\n"+box("c", "", "sleep"))
		s.Pod("beside", "containers:\n"+box("c", "", "sleep"))
		s.Running("web")
		id := status(s.Running("beside"), "c").ContainerID
		web, critical := s.pushIncompressibleImage("web", 16), s.pushIncompressibleImage("critical", 8)
		_, size := s.imageDiskUsage()
		release := s.fillImageDisk(size / 100 * 80)
		s.waitPressure("DiskPressure", true)

		s.Pod("web", "containers:\n"+imageBox("c", web, "", "sleep"))
		s.waitNoSpace("web", "c", web, "imagefs.available is ", "less than ")
		s.Pod("critical", "priorityClassName: system-node-critical\ncontainers:\n"+imageBox("c", critical, "", "sleep"))
		s.Running("critical")
		s.waitNoSpace("web", "c", web)

		release()
		s.Wait("web", "running with its new image", func(p *corev1.Pod) bool {
			c := status(p, "c")
			return c.State.Running != nil && strings.Contains(c.Image, "web")
		})
		if got := status(s.Running("beside"), "c"); got.ContainerID != id || got.RestartCount != 0 {
			t.Errorf("the other pod was replaced or restarted: %+v", got)
		}
	})
}

// TestScenario28_SpaceIsFreedForPullOfKnownSize pulls images that the node has pulled before, so it
// knows their size. The node removes unused images to make them fit. A pull waits when there are no
// unused images left. No pull fails because the disk is full.
func TestScenario28_SpaceIsFreedForPullOfKnownSize(t *testing.T) {
	forEachNewNode(t, nodeOptions{CNI: true, Disk: "size=256m"}, func(t *testing.T, s *Namespace) {
		refs := map[string]string{}
		for _, name := range []string{"old", "again"} {
			refs[name] = s.pushIncompressibleImage(name, 24)
			s.Pod(name, "containers:\n"+imageBox("c", refs[name], "", "sleep"))
			s.Running(name)
			s.Remove(name)
			s.WaitDeleted(name)
		}
		remove := &runtimeapi.RemoveImageRequest{Image: &runtimeapi.ImageSpec{Image: refs["again"]}}
		if _, err := s.Host.Image.RemoveImage(t.Context(), remove); err != nil {
			t.Fatal(err)
		}
		_, size := s.imageDiskUsage()
		release := s.fillImageDisk(size - 20<<20)

		s.Pod("again", "containers:\n"+imageBox("c", refs["again"], "", "sleep"))
		s.Running("again")
		if names := s.listImages(); slices.Contains(names, "old") || !slices.Contains(names, "again") {
			t.Errorf("got images %v, want again and not old", names)
		}
		s.waitImagesCollected(1)

		s.Pod("old", "containers:\n"+imageBox("c", refs["old"], "", "sleep"))
		s.waitNoSpace("old", "c", refs["old"], "it takes ", "Mi are free")
		release()
		s.Running("old")
		for name := range refs {
			if events := strings.Join(s.Events(name), "\n"); strings.Contains(events, "no space left on device") {
				t.Errorf("the pull of %s failed because the disk is full:\n%s", name, events)
			}
		}
	})
}

// listImages returns the sorted base names of the runtime's images.
func (s *Namespace) listImages() (names []string) {
	s.t.Helper()
	list, err := s.Host.Image.ListImages(s.t.Context(), &runtimeapi.ListImagesRequest{})
	if err != nil {
		s.t.Fatal(err)
	}
	for _, img := range list.Images {
		for _, tag := range img.RepoTags {
			names = append(names, filepath.Base(strings.TrimSuffix(tag, ":1")))
		}
	}
	slices.Sort(names)
	return names
}

// TestUnusedImagesAreRemoved checks that unused images are removed when the disk is too full, the least
// recently used first and no more than needed. Images in use, the sandbox image and images that were
// not pulled are kept.
func TestUnusedImagesAreRemoved(t *testing.T) {
	o := nodeOptions{CNI: true, Disk: "size=256m",
		Config: map[string]any{"imageGCHighThresholdPercent": 80, "imageGCLowThresholdPercent": 75,
			"imageMinimumGCAge": "1s"},
		Berth: map[string]any{"imageGCPeriod": "1s"},
	}
	forEachNewNode(t, o, func(t *testing.T, s *Namespace) {
		const mib = 16 // uses twice as much on disk, more than the distance between the thresholds
		for _, name := range []string{"a", "b", "c", "d"} {
			s.Pod(name, "containers:\n"+imageBox("c", s.pushIncompressibleImage(name, mib), "", "sleep"))
			s.Running(name)
			if name != "d" { // stays in use
				s.Remove(name)
				s.WaitDeleted(name)
			}
		}
		_, size := s.imageDiskUsage()
		high := size/100*80 + 2<<20
		want := []string{"a", "b", "c", "d", "pause:3.10", "testbox"}
		if got := s.listImages(); !slices.Equal(got, want) || s.metric("kubelet_image_garbage_collected_total") > 0 {
			used, _ := s.imageDiskUsage()
			t.Fatalf("got images %v before the disk is too full (%d bytes of %d)", got, used, size)
		}
		for i, name := range []string{"a", "b", "c"} {
			s.fillImageDisk(high)
			err := hosts.WaitFor(t.Context(), "image "+name+" to be removed", func() (bool, error) {
				return !slices.Contains(s.listImages(), name), nil
			})
			if err != nil {
				t.Fatal(err)
			}
			want = slices.DeleteFunc(want, func(n string) bool { return n == name })
			s.waitImagesCollected(i + 1)
			if used, _ := s.imageDiskUsage(); used > size/100*75 {
				t.Errorf("%d bytes of %d are still in use", used, size)
			}
			if got := s.listImages(); !slices.Equal(got, want) {
				t.Errorf("after the removal of %s: got images %v, want %v", name, got, want)
			}
			if !strings.Contains(s.Agent.Log(), "image removed") {
				t.Error("the log does not contain \"image removed\"")
			}
		}
		release := s.fillImageDisk(size / 100 * 97)
		waitLogged := func(text string) {
			t.Helper()
			if err := hosts.WaitFor(t.Context(), text, func() (bool, error) {
				return strings.Contains(s.Agent.Log(), text), nil
			}); err != nil {
				t.Fatal(err)
			}
		}
		waitLogged("FreeDiskSpaceFailed")
		waitLogged("but only found 0 bytes eligible to free")
		if got := s.listImages(); !slices.Equal(got, want) {
			t.Errorf("on a full disk: got images %v, want %v", got, want)
		}
		s.contains("berth check", strings.Join(strings.Fields(s.Berth("check")), " "), "disk of images",
			"unused images are removed from 80% usage on", "images that do not fit cannot be pulled")
		s.Running("d")
		release()
	})
}

// TestScenario28_ReclaimRemovesOnlyNeededImages checks that under pressure unused images are removed one
// by one, the least recently used first, until the threshold plus evictionMinimumReclaim is free.
func TestScenario28_ReclaimRemovesOnlyNeededImages(t *testing.T) {
	const mib = 16 // uses twice as much on disk
	o := nodeOptions{CNI: true, Disk: "size=256m", Config: map[string]any{
		"evictionHard":                     map[string]string{"imagefs.available": "64Mi"},
		"evictionMinimumReclaim":           map[string]string{"imagefs.available": "40Mi"},
		"evictionPressureTransitionPeriod": "5s",
	}}
	forEachNewNode(t, o, func(t *testing.T, s *Namespace) {
		for _, name := range []string{"a", "b", "c", "d"} {
			s.Pod(name, "containers:\n"+imageBox("c", s.pushIncompressibleImage(name, mib), "", "sleep"))
			s.Running(name)
			if name != "d" { // stays in use
				s.Remove(name)
				s.WaitDeleted(name)
			}
		}
		_, size := s.imageDiskUsage()
		s.fillImageDisk(size - 62<<20)
		s.waitImagesCollected(2) // without the minimum reclaim one would be enough
		s.waitPressure("DiskPressure", false)
		if got, want := s.listImages(), []string{"c", "d", "pause:3.10", "testbox"}; !slices.Equal(got, want) {
			t.Errorf("got images %v, want %v", got, want)
		}
		s.waitImagesCollected(2)
		if p := s.Running("d"); status(p, "c").RestartCount != 0 {
			t.Errorf("pod was replaced or restarted: %s", brief(p))
		}
	})
}

// waitImagesCollected waits until the metric of images removed for space has the value n.
func (s *Namespace) waitImagesCollected(n int) {
	s.t.Helper()
	const name = `kubelet_image_garbage_collected_total{reason="space"}`
	err := hosts.WaitFor(s.t.Context(), fmt.Sprintf("%d collected images", n), func() (bool, error) {
		return s.metric(name) == float64(n), nil
	})
	if err != nil {
		s.t.Error(err)
	}
}
