package e2e

import (
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/nodeapi"
	"berth/test/hosts"
	"berth/test/images"
)

// labeledImage returns the testbox image with a label, so its ID is unique.
func (s *Namespace) labeledImage(label string) v1.Image {
	s.t.Helper()
	img := s.testbox()
	c, err := img.ConfigFile()
	if err != nil {
		s.t.Fatal(err)
	}
	config := *c.Config.DeepCopy()
	config.Labels = map[string]string{"of": label}
	if img, err = mutate.Config(img, config); err != nil {
		s.t.Fatal(err)
	}
	return img
}

// putArchive writes a file atomically to the directory of image archives.
func (s *Namespace) putArchive(file string, write func(path string) error) string {
	s.t.Helper()
	dir := filepath.Join(s.Agent.StateDir, "images")
	tmp, path := filepath.Join(dir, "."+file), filepath.Join(dir, file)
	if err := errors.Join(write(tmp), os.Rename(tmp, path)); err != nil {
		s.t.Fatal(err)
	}
	return path
}

// dockerArchive returns a function that writes a gzipped archive in the format of docker save.
func dockerArchive(ref string, img v1.Image) func(path string) error {
	return func(path string) error {
		tag, err := name.NewTag(ref)
		if err != nil {
			return err
		}
		f, err := os.Create(path)
		if err != nil {
			return err
		}
		defer f.Close()
		z := gzip.NewWriter(f)
		return errors.Join(tarball.Write(tag, img, z), z.Close())
	}
}

// waitArchive waits until berth images shows an archive in a state.
func (s *Namespace) waitArchive(path, state string) (found nodeapi.Archive, all nodeapi.Images) {
	s.t.Helper()
	err := hosts.WaitFor(s.t.Context(), path+" to be "+state, func() (bool, error) {
		out, err := s.Agent.Command(s.t.Context(), "images", "-o", "json").Output()
		if err != nil {
			return false, nil //nolint:nilerr // the agent restarts
		}
		all = nodeapi.Images{}
		if err := json.Unmarshal(out, &all); err != nil {
			return false, err
		}
		for _, a := range all.Archives {
			if a.Path == path && a.State == state {
				found = a
				return true, nil
			}
		}
		return false, nil
	})
	if err != nil {
		s.t.Fatalf("%v: %+v\n%s", err, all.Archives, s.Agent.Log())
	}
	return found, all
}

// importCount returns how often the agent has logged an import of an image.
func (s *Namespace) importCount(ref string) (n int) {
	for line := range strings.Lines(s.Agent.Log()) {
		if strings.Contains(line, "image imported") && strings.Contains(line, ref) {
			n++
		}
	}
	return n
}

// TestImageArchivesAreImported checks that pods whose image is in no registry start when an archive
// with the image is added. The archive is imported once, also across agent restarts, unless the
// image is removed.
func TestImageArchivesAreImported(t *testing.T) {
	forEachNewNode(t, nodeOptions{CNI: true}, func(t *testing.T, s *Namespace) {
		saved, layout := "docker.io/"+s.ns+"/saved:1", "docker.io/"+s.ns+"/layout:1"
		s.Pod("never", "containers:\n"+imageBox("c", s.ns+"/saved:1", "imagePullPolicy: Never", "sleep"))
		s.Pod("lazy", "containers:\n"+imageBox("c", s.ns+"/layout:1", "imagePullPolicy: IfNotPresent", "sleep"))
		s.Waiting("never", "c", "ErrImageNeverPull")
		s.Waiting("lazy", "c", "ImagePullBackOff")

		bad := s.putArchive("bad.tar", func(path string) error {
			return os.WriteFile(path, []byte(strings.Repeat("none", 500)), 0o644)
		})
		a := s.putArchive("saved.tar.gz", dockerArchive(saved, s.labeledImage(s.ns+"saved")))
		b := s.putArchive("layout.tar", func(path string) error {
			return images.Write(path, layout, s.labeledImage(s.ns+"layout"))
		})
		s.Running("never")
		s.Running("lazy")
		s.waitArchive(a, "imported")
		_, all := s.waitArchive(b, "imported")
		for ref, file := range map[string]string{saved: a, layout: b} {
			found := false
			for _, img := range all.Images {
				found = found || strings.Contains(strings.Join(img.Names, " "), ref) && img.Pinned == file && img.InUse
			}
			if !found {
				t.Errorf("image %s is not pinned by %s: %+v", ref, file, all.Images)
			}
		}
		if f, _ := s.waitArchive(bad, "broken"); !strings.Contains(f.Message, "read tar") {
			t.Errorf("broken archive: %+v", f)
		}
		s.contains("the log", s.Agent.Log(), "Failed to import images of "+bad+": read tar")
		text, err := s.Agent.Command(t.Context(), "images").CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %s", err, text)
		}
		s.contains("the list", string(text), "IMAGE ID", "docker.io/"+s.ns+"/saved", a, bad+": broken: read tar")

		// After a restart the agent imports nothing, and the pods keep running.
		ids := status(s.Running("never"), "c").ContainerID + status(s.Running("lazy"), "c").ContainerID
		s.KillAndRestartAgent()
		s.waitArchive(a, "imported")
		s.waitArchive(b, "imported")
		if n, m := s.importCount(saved), s.importCount(layout); n != 1 || m != 1 {
			t.Errorf("got %d and %d imports, want 1 and 1", n, m)
		}
		if after := status(s.Running("never"), "c").ContainerID +
			status(s.Running("lazy"), "c").ContainerID; after != ids {
			t.Error("containers were replaced")
		}

		// A removed image is imported again.
		s.Remove("never")
		s.WaitDeleted("never")
		if _, err := s.Host.Image.RemoveImage(t.Context(),
			&runtimeapi.RemoveImageRequest{Image: &runtimeapi.ImageSpec{Image: saved}}); err != nil {
			t.Fatal(err)
		}
		s.Pod("again", "containers:\n"+imageBox("c", s.ns+"/saved:1", "imagePullPolicy: Never", "sleep"))
		s.Running("again")

		out, err := s.Host.Ctr(t.Context(), "leases", "ls", "-q")
		if err != nil || strings.Contains(out, "berth-import") {
			t.Errorf("leases remain: %v %s", err, out)
		}
	})
}

// TestMovedTagIsUsedByNextStart imports another image with a tag that running pods use. The pods keep
// running. A restarted container and a new pod use the new image.
func TestMovedTagIsUsedByNextStart(t *testing.T) {
	forEachNewNode(t, nodeOptions{CNI: true}, func(t *testing.T, s *Namespace) {
		ref := "docker.io/" + s.ns + "/app:1"
		for _, label := range []string{"1", "2"} {
			img := s.labeledImage(s.ns + label)
			config, err := img.ConfigName()
			if err != nil {
				t.Fatal(err)
			}
			waitRunning := func(name string, restarts int32) {
				t.Helper()
				s.Wait(name, "running image "+config.String()+" after "+fmt.Sprint(restarts)+" restarts",
					func(p *corev1.Pod) bool {
						c := status(p, "c")
						return c.State.Running != nil && c.RestartCount == restarts &&
							strings.Contains(c.ImageID, config.String())
					})
			}
			lazy := "containers:\n" + imageBox("c", s.ns+"/app:1", "imagePullPolicy: IfNotPresent", "sleep")
			never := "containers:\n" + imageBox("c", s.ns+"/app:1", "imagePullPolicy: Never", "sleep")
			path := s.putArchive(label+".tar", func(path string) error { return images.Write(path, ref, img) })
			s.waitArchive(path, "imported")
			if label == "1" {
				s.Pod("lazy", lazy)
				s.Pod("never", never)
				waitRunning("lazy", 0)
				waitRunning("never", 0)
				continue
			}
			if c := status(s.Get("lazy"), "c"); c.RestartCount != 0 || c.State.Running == nil {
				t.Errorf("restarted because the tag moved: %+v", c)
			}
			s.Berth("restart", "-n", s.ns, "lazy")
			waitRunning("lazy", 1)
			s.Berth("restart", "-n", s.ns, "never")
			waitRunning("never", 1)
			s.Remove("lazy")
			s.WaitDeleted("lazy")
			s.Pod("lazy", lazy)
			waitRunning("lazy", 0)
		}
	})
}
