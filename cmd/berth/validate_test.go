package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const validDeployment = "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: web}\nspec:\n" +
	"  selector: {matchLabels: {app: web}}\n  template:\n    metadata: {labels: {app: web}}\n" +
	"    spec: {containers: [{name: c, image: \"web:1\"}]}\n"

// runValidate runs the command in a directory with files. In its arguments and output, DIR is that directory.
func runValidate(t *testing.T, files map[string]string, stdin string, args ...string) (out, problems string,
	err error) {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for i := range args {
		args[i] = strings.Replace(args[i], "DIR", dir, 1)
	}
	cmd := validateCommand()
	var stdout, stderr bytes.Buffer
	cmd.SetIn(strings.NewReader(stdin))
	cmd.SetOut(&stdout)
	cmd.SetErr(&stderr)
	cmd.SilenceErrors, cmd.SilenceUsage = true, true
	cmd.SetArgs(args)
	err = cmd.Execute()
	return strings.ReplaceAll(stdout.String(), dir, "DIR"), strings.ReplaceAll(stderr.String(), dir, "DIR"), err
}

func TestValidateReportsEachFile(t *testing.T) {
	t.Parallel()
	many := validDeployment
	for _, doc := range []string{"Pod a", "Pod b", "ConfigMap a", "Secret a", "Service a", "Service b"} {
		kind, name, _ := strings.Cut(doc, " ")
		many += "---\napiVersion: v1\nkind: " + kind + "\nmetadata: {name: " + name + "}\n" + map[string]string{
			"Pod": "spec: {containers: [{name: c, image: i}]}\n", "Service": "spec: {ports: [{port: 80}]}\n",
		}[kind]
	}
	for name, c := range map[string]struct{ text, out, err string }{
		"one object": {validDeployment, "valid: 1 Deployment\n", ""},
		"several objects": {
			many, "valid: 2 Pods, 1 Deployment, 2 Services, 1 ConfigMap, 1 Secret\n", "",
		},
		"empty": {"", "valid: no objects\n", ""},
		"wrong selector": {
			strings.Replace(validDeployment, "{app: web}}", "{app: db}}", 1), "", "does not match template `labels`",
		},
		"unknown field": {validDeployment + "  imaginary: 1\n", "", "m.yaml:9: spec.imaginary"},
		"wrong version": {
			strings.Replace(validDeployment, "apps/v1", "v1", 1), "", "must be apps/v1 for kind Deployment",
		},
		"claims": {
			strings.Replace(validDeployment, "kind: Deployment", "kind: StatefulSet", 1) +
				"  volumeClaimTemplates: [{metadata: {name: data}, spec: {accessModes: [ReadWriteOnce], " +
				"resources: {requests: {storage: 1Gi}}}}]\n",
			"", "spec.volumeClaimTemplates",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			out, problems, err := runValidate(t, map[string]string{"m.yaml": c.text}, "", "DIR/m.yaml")
			if (err != nil) != (c.err != "") || !strings.Contains(out, c.out) || !strings.Contains(problems, c.err) {
				t.Errorf("got %v\n%s%s", err, out, problems)
			}
		})
	}
}

// TestValidateChecksArgumentsTogether checks directories, stdin and files that define the same object.
func TestValidateChecksArgumentsTogether(t *testing.T) {
	t.Parallel()
	service := "apiVersion: v1\nkind: Service\nmetadata: {name: web}\nspec: {ports: [{port: 80}]}\n"
	taken := ":3: metadata.name: Deployment default/web is already defined in "
	const ignored = "/README: warning: ignored because of its name: manifests end in .yaml, .yml, .json or .manifest\n"
	files := map[string]string{
		"a.yaml": validDeployment, "b.yml": service + "---\n" + validDeployment, "c/service.json": "",
		"c/web.manifest": service, "c/.hidden.yaml": "[", "c/web.yaml~": "[", "c/README": "[",
		"c/sub.yaml/x.yaml": "[", "d/README": "",
	}
	for name, c := range map[string]struct {
		args               []string
		stdin              string
		out, problems, err string
	}{
		"directory": {
			args: []string{"DIR/c"},
			out: "DIR/c" + ignored +
				"DIR/c/service.json: valid: no objects\nDIR/c/web.manifest: valid: 1 Service\n",
		},
		"directory without manifests": {
			args: []string{"DIR/d"},
			out:  "DIR/d" + ignored + "DIR/d: no manifests\n",
		},
		"stdin": {args: []string{"-", "-"}, stdin: validDeployment, out: "<stdin>: valid: 1 Deployment\n"},
		"invalid stdin": {
			args: []string{"-"}, stdin: validDeployment + "  imaginary: 1\n",
			problems: "<stdin>:9: spec.imaginary: unknown field\n", err: "invalid files: 1 of 1",
		},
		"the same object twice": {
			args: []string{"DIR/b.yml", "DIR/a.yaml"}, out: "DIR/a.yaml: valid: 1 Deployment\n",
			problems: "DIR/b.yml:8" + strings.TrimPrefix(taken, ":3") + "DIR/a.yaml\n", err: "invalid files: 1 of 2",
		},
		"the same object in a directory and on stdin": {
			args: []string{"DIR/a.yaml", "-"}, stdin: validDeployment, out: "DIR/a.yaml: valid: 1 Deployment\n",
			problems: "<stdin>" + taken + "DIR/a.yaml\n", err: "invalid files: 1 of 2",
		},
		"the same file twice": {
			args: []string{"DIR/a.yaml", "DIR/c/../a.yaml"}, out: "DIR/a.yaml: valid: 1 Deployment\n",
		},
		"missing file": {
			args: []string{"DIR/a.yaml", "DIR/none.yaml"}, out: "DIR/a.yaml: valid: 1 Deployment\n",
			problems: "DIR/none.yaml: open: no such file or directory\n", err: "invalid files: 1 of 2",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			out, problems, err := runValidate(t, files, c.stdin, c.args...)
			text := ""
			if err != nil {
				text = err.Error()
			}
			if out != c.out || problems != c.problems || text != c.err {
				t.Errorf("got error %q\n%s%s", text, out, problems)
			}
		})
	}
}
