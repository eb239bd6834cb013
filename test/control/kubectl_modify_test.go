package control

import (
	"bufio"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"berth/test/hosts"
)

// TestKubectlModifiesObject changes an object with all modifying verbs of kubectl and watches it.
func TestKubectlModifiesObject(t *testing.T) {
	t.Parallel()
	s := Shared(t)
	s.Kubectl(t, "create", "namespace", "changes")
	runKubectl := func(args ...string) string {
		t.Helper()
		return strings.TrimSpace(s.Kubectl(t, append([]string{"-n", "changes"}, args...)...))
	}
	const object = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: c, namespace: changes}\ndata: {applied: 'yes'}\n"
	s.Apply(t, object)
	waitForLines := s.startKubectlWatch(t, "-n", "changes", "get", "configmap", "c", "-o",
		`custom-columns=:.metadata.labels.by,:.metadata.annotations.by,:.data`, "--no-headers", "-w")
	runKubectl("label", "configmap", "c", "by=label")
	runKubectl("annotate", "configmap", "c", "by=annotate")
	runKubectl("patch", "configmap", "c", "-p", `{"data":{"strategic":"1"}}`)
	runKubectl("patch", "configmap", "c", "--type=merge", "-p", `{"data":{"merge":"2"}}`)
	runKubectl("patch", "configmap", "c", "--type=json", "-p", `[{"op":"add","path":"/data/json","value":"3"}]`)
	s.edit(t, "changes", "configmap/c", "s/strategic:.*/edited: \"4\"/")
	s.Apply(t, strings.Replace(object, "applied: 'yes'", "applied: again", 1), "--server-side", "--force-conflicts")
	const want = `map[applied:again edited:4 json:3 merge:2]`
	if got := runKubectl("get", "configmap", "c", "-o",
		`jsonpath={.metadata.labels.by} {.metadata.annotations.by} {.data}`); got != `label annotate `+
		`{"applied":"again","edited":"4","json":"3","merge":"2"}` {
		t.Errorf("after all changes: got %s", got)
	}
	waitForLines("<none> <none> map[applied:yes]", "label <none> map[applied:yes]", "label annotate map[applied:yes]",
		"map[applied:yes strategic:1]", "map[applied:yes edited:4 json:3 merge:2]", want)
	runKubectl("annotate", "configmap", "c", "by-")
	if got := runKubectl("get", "configmap", "c", "-o", "jsonpath={.metadata.annotations.by}"); got != "" {
		t.Errorf("removed annotation: got %q, want none", got)
	}
}

// edit runs kubectl edit with sed as the editor.
func (s *Server) edit(t *testing.T, namespace, object, script string) {
	t.Helper()
	program, err := hosts.Kubectl()
	if err != nil {
		t.Fatal(err)
	}
	editor := filepath.Join(t.TempDir(), "editor")
	if err := hosts.WriteProgram(editor, "#!/bin/sh\nexec sed -i '"+script+"' \"$1\"\n"); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), program, "--kubeconfig", s.Kubeconfig, "-n", namespace, "edit", object)
	cmd.Env = append(os.Environ(), "HOME="+t.TempDir(), "KUBE_EDITOR="+editor)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("kubectl edit: %v\n%s", err, out)
	}
}

// startKubectlWatch starts kubectl get -w. The returned function waits until kubectl has printed lines
// that contain the texts, in this order.
func (s *Server) startKubectlWatch(t *testing.T, args ...string) (waitForLines func(texts ...string)) {
	t.Helper()
	program, err := hosts.Kubectl()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	cmd := exec.CommandContext(ctx, program, append([]string{"--kubeconfig", s.Kubeconfig}, args...)...)
	cmd.Env = append(os.Environ(), "HOME="+t.TempDir())
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		cancel()
		t.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	t.Cleanup(func() {
		cancel()
		_ = cmd.Wait() // returns an error, because cancel kills the process
	})
	if !lines.Scan() { // the first line shows that the watch is established
		t.Fatal("kubectl get -w printed nothing")
	}
	first := lines.Text()
	return func(texts ...string) {
		t.Helper()
		line, all := first, []string{first}
		for len(texts) > 0 {
			if strings.Contains(strings.Join(strings.Fields(line), " "), texts[0]) {
				texts = texts[1:]
				continue
			}
			if !lines.Scan() {
				t.Fatalf("%q not found in\n%s", texts, strings.Join(all, "\n"))
			}
			line = lines.Text()
			all = append(all, line)
		}
	}
}
