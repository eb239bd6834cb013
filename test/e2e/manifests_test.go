package e2e

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"berth/nodeapi"
	"berth/test/hosts"
)

// waitInvalidManifest waits until the node reports a manifest file of the test as invalid.
func (s *Namespace) waitInvalidManifest(file string) nodeapi.InvalidManifest {
	s.t.Helper()
	path := s.path(file)
	var found nodeapi.InvalidManifest
	var lastErr error
	err := hosts.WaitFor(s.t.Context(), path+" to be reported as invalid", func() (bool, error) {
		n, err := s.Client.Node(s.t.Context())
		for _, f := range n.InvalidManifests {
			if f.Path == path {
				found = f
				return true, nil
			}
		}
		lastErr = err // retried
		return false, nil
	})
	if err != nil {
		s.t.Fatal(err, lastErr)
	}
	return found
}

// waitValidManifest waits until the node does not report a manifest file as invalid.
func (s *Namespace) waitValidManifest(file string) {
	s.t.Helper()
	path := s.path(file)
	err := hosts.WaitFor(s.t.Context(), path+" to be valid", func() (bool, error) {
		n, err := s.Client.Node(s.t.Context())
		for _, f := range n.InvalidManifests {
			if f.Path == path {
				return false, nil
			}
		}
		return err == nil, nil
	})
	if err != nil {
		s.t.Fatal(err)
	}
}

func TestInvalidEditKeepsLastValidVersion(t *testing.T) {
	forEachContainerd(t, func(t *testing.T, s *Namespace) {
		valid := podYAML("keep", "", "containers:\n"+box("c", "", "sleep"))
		s.Put("keep", valid)
		before := s.Running("keep")
		for _, row := range []struct {
			name, text, field, message string
			line                       int
		}{
			{"an unknown field", valid + "  imaginary: true\n", "spec.imaginary", "unknown field",
				strings.Count(valid, "\n") + 1},
			{"invalid YAML", valid + "  x: [1, 2\n", "", "", 0},
			{"a wrong type", strings.Replace(valid, "terminationGracePeriodSeconds: 2",
				"terminationGracePeriodSeconds: soon",
				1), "spec.terminationGracePeriodSeconds", "", 7},
			{"an invalid value", strings.Replace(valid, "name: c,", "name: Not_A_Label,", 1), "spec.containers[0].name",
				"Not_A_Label", 0},
			{"a duplicate key", valid + "  restartPolicy: Always\n  restartPolicy: Never\n", "spec.restartPolicy",
				"duplicate",
				strings.Count(valid, "\n") + 2},
		} {
			s.Put("keep", row.text)
			f := s.waitInvalidManifest("keep")
			if row.field != "" && !strings.Contains(f.Field+" "+f.Message, row.field) ||
				!strings.Contains(f.Message, row.message) || row.line != 0 && f.Line != row.line || !f.LastValidInUse {
				t.Errorf("%s: %+v", row.name, f)
			}
			s.contains("ps", s.Berth("ps", "-n", s.ns), "keep", filepath.Base(s.path("keep")))
			s.contains("the log", s.Agent.Log(), filepath.Base(s.path("keep")))
			s.Put("keep", valid)
			s.waitValidManifest("keep")
		}
		if p := s.Get("keep"); p == nil || p.UID != before.UID || status(p, "c").RestartCount != 0 ||
			p.DeletionTimestamp != nil {
			t.Errorf("pod was replaced or restarted: %s", brief(p))
		}
		s.Put("never", "kind: Pod\napiVersion: v1\nmetadata: {name: never, namespace: NS}\nspec: {containers: []}\n")
		if f := s.waitInvalidManifest("never"); f.LastValidInUse ||
			!strings.Contains(f.Field+f.Message, "spec.containers") {
			t.Errorf("%+v", f)
		}
		if out, err := s.Try("why", "-n", s.ns, "never"); err == nil || !strings.Contains(out, "spec.containers") {
			t.Errorf("why of a pod with an invalid manifest: %v %s", err, out)
		}
	})
}

// TestNewFileDoesNotTakeOverPod adds a second file for the same pod whose name sorts first, and restarts
// the agent.
func TestNewFileDoesNotTakeOverPod(t *testing.T) {
	forEachNewNode(t, nodeOptions{CNI: true}, func(t *testing.T, s *Namespace) {
		text := podYAML("taken", "", "containers:\n"+box("c", "", "sleep"))
		s.Put("m", text)
		before := s.Running("taken")
		s.Put("a", strings.Replace(text, "name: c", "name: d", 1))
		checkUnchanged := func(when string) {
			t.Helper()
			if f := s.waitInvalidManifest("a"); f.Message != "Pod "+s.ns+"/taken is already defined in "+s.path("m") {
				t.Errorf("%s: %+v", when, f)
			}
			s.waitValidManifest("m")
			if p := s.Running("taken"); p.UID != before.UID ||
				status(p, "c").ContainerID != status(before, "c").ContainerID ||
				p.DeletionTimestamp != nil {
				t.Errorf("%s: %s", when, brief(p))
			}
		}
		checkUnchanged("with a second file")
		if err := s.Agent.Restart(t.Context()); err != nil {
			t.Fatal(err)
		}
		checkUnchanged("after the restart")
		s.Remove("m")
		s.waitValidManifest("a")
		s.Wait("taken", "running as defined in the other file", func(p *corev1.Pod) bool {
			return p.Spec.Containers[0].Name == "d" && status(p, "d").Ready
		})
	})
}

func TestManyInvalidFilesAreHarmless(t *testing.T) {
	forEachNewNode(t, nodeOptions{CNI: true}, func(t *testing.T, s *Namespace) {
		s.Pod("good", "containers:\n"+box("c", "", "sleep"))
		before := s.Running("good")
		random := rand.New(rand.NewPCG(1, 2))
		valid := podYAML("x", "", "containers:\n"+box("c", "", "sleep"))
		for i := range 200 {
			text := make([]byte, random.IntN(3000))
			for j := range text {
				text[j] = byte(random.Uint32())
			}
			switch i % 4 {
			case 1: // a truncated manifest
				text = []byte(valid[:random.IntN(len(valid)-20)])
			case 2: // with a byte replaced by a control character
				text = []byte(valid)
				text[random.IntN(len(text))] = 1
			case 3:
				text = []byte(strings.Repeat("[", 1+random.IntN(20000)))
			}
			if err := os.WriteFile(s.path(fmt.Sprintf("invalid-%d.yaml", i)), text, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.Mkdir(s.path("directory.yaml"), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink("/nowhere", s.path("dangling.yaml")); err != nil {
			t.Fatal(err)
		}
		err := hosts.WaitFor(t.Context(), "150 files to be reported as invalid", func() (bool, error) {
			n, err := s.Client.Node(t.Context())
			return len(n.InvalidManifests) >= 150, err
		})
		if err != nil {
			n, _ := s.Client.Node(t.Context())
			t.Fatalf("%v: got %d invalid files", err, len(n.InvalidManifests))
		}
		s.Pod("after", "containers:\n"+box("c", "", "sleep"))
		s.Running("after")
		if p := s.Get("good"); p.UID != before.UID || status(p, "c").RestartCount != 0 {
			t.Errorf("pod was replaced or restarted: %s", brief(p))
		}
	})
}

func TestManifestFormats(t *testing.T) {
	forEachContainerd(t, func(t *testing.T, s *Namespace) {
		pod := func(name string) string { return podYAML(name, "", "containers:\n"+box("c", "", "sleep")) }
		s.Put("several", pod("first")+"---\n"+configMap("cm", "a: b")+"---\n# only a comment\n---\n"+pod("second"))
		s.Put("json.json", `{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "json", "namespace": "NS"},
			"spec": {"terminationGracePeriodSeconds": 1,
			"containers": [{"name": "c", "image": "berth/testbox:1", "args": ["sleep"]}]}}`)
		s.Put("list", "apiVersion: v1\nkind: List\nitems:\n"+item(pod("listed-a"))+item(pod("listed-b")))
		for _, name := range []string{"first", "second", "json", "listed-a", "listed-b"} {
			s.Running(name)
		}
		before := s.Get("first")
		// Removing a document deletes its pod and has no effect on the other pod.
		s.Put("several", pod("first"))
		s.WaitDeleted("second")
		if p := s.Get("first"); p == nil || p.UID != before.UID {
			t.Error("the other pod of the file was replaced")
		}
	})
}

// item formats a document as an element of a list.
func item(text string) string {
	return "- " + strings.TrimSuffix(strings.ReplaceAll(text, "\n", "\n  "), "  ")
}
