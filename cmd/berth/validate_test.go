package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestValidateReportsEachFile(t *testing.T) {
	t.Parallel()
	valid := "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: web}\nspec:\n" +
		"  selector: {matchLabels: {app: web}}\n  template:\n    metadata: {labels: {app: web}}\n" +
		"    spec: {containers: [{name: c, image: \"web:1\"}]}\n"
	for name, c := range map[string]struct{ text, out, err string }{
		"valid": {valid, "valid: 0 pods, 1 workloads, 0 Services", ""},
		"Service": {"apiVersion: v1\nkind: Service\nmetadata: {name: web}\nspec: {ports: [{port: 80}]}\n",
			"0 workloads, 1 Services", ""},
		"wrong selector": {strings.Replace(valid, "{app: web}}", "{app: db}}", 1), "",
			"does not match template `labels`"},
		"unknown field": {valid + "  imaginary: 1\n", "", "spec.imaginary"},
		"wrong version": {strings.Replace(valid, "apps/v1", "v1", 1), "", "must be apps/v1 for kind Deployment"},
		"claims": {
			strings.Replace(valid, "kind: Deployment", "kind: StatefulSet", 1) +
				"  volumeClaimTemplates: [{metadata: {name: data}, spec: {accessModes: [ReadWriteOnce], " +
				"resources: {requests: {storage: 1Gi}}}}]\n",
			"", "spec.volumeClaimTemplates",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := filepath.Join(t.TempDir(), "m.yaml")
			if err := os.WriteFile(path, []byte(c.text), 0o600); err != nil {
				t.Fatal(err)
			}
			cmd := validateCommand()
			var out, problems bytes.Buffer
			cmd.SetOut(&out)
			cmd.SetErr(&problems)
			cmd.SilenceErrors, cmd.SilenceUsage = true, true
			cmd.SetArgs([]string{path})
			err := cmd.Execute()
			if (err != nil) != (c.err != "") || !strings.Contains(out.String(), c.out) ||
				!strings.Contains(problems.String(), c.err) {
				t.Errorf("got %v\n%s%s", err, out.String(), problems.String())
			}
		})
	}
}
