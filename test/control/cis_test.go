package control

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"berth/control"
	"berth/internal/cis"
)

// TestCheckCIS checks a server with default settings against the CIS Kubernetes Benchmark: no control fails, and all
// are checked.
func TestCheckCIS(t *testing.T) {
	t.Parallel()
	s := Shared(t)
	config := filepath.Join(t.TempDir(), "config.yaml") // not the one of this host
	text := "apiVersion: " + control.ConfigFileAPIVersion + "\nkind: " + control.ConfigFileKind + "\ndataDir: " +
		s.DataDir + "\n"
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := runControl(t, "check", "--cis", "--config", config)
	if err != nil || !strings.HasPrefix(out, cis.Benchmark+"\n") || !strings.Contains(out, ", 0 failed, ") ||
		!strings.HasSuffix(out, ", 0 not checked\n") {
		t.Errorf("check --cis: %v\n%s", err, out)
	}
	for _, want := range []string{
		"1.2.29   PASS", "1.2.1    ACCEPTED", "1.2.7    PASS", "2.1      N/A", "5.2.1    MANUAL",
	} {
		if !strings.Contains(out, "\n"+want) {
			t.Errorf("no line starts with %q", want)
		}
	}
	out, err = runControl(t, "check", "--cis", "--config", config, "-o", "json")
	var report cis.Report
	if decodeErr := json.Unmarshal([]byte(out), &report); err != nil || decodeErr != nil ||
		len(report.Results) != len(cis.Controls("1", "2", "3", "5")) || report.ExitCode() != 0 {
		t.Errorf("check --cis -o json: %v, %v\n%s", err, decodeErr, out)
	}
	for _, file := range []string{s.AdminKubeconfig(), filepath.Join(s.DataDir, "pki", "encryption.yaml")} {
		secret, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(secret)) {
			_, value, _ := strings.Cut(strings.TrimSpace(line), ": ")
			if len(value) > 40 && strings.Contains(out, value) {
				t.Errorf("the output contains a value of %s", file)
			}
		}
	}
	// Another setting of the server, as a flag.
	out, err = runControl(t, "check", "--cis", "--config", config, "--disable-admission-plugins=NodeRestriction")
	if err == nil || !strings.Contains(out, "\n1.2.14   FAIL ") || !strings.Contains(out, ", 1 failed, ") {
		t.Errorf("with a failing control: got %v\n%s", err, out)
	}
}
