package main

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"berth/control"
)

// TestCheckCommand runs check without a server: the exit code says whether a control failed, or whether the check is
// incomplete.
func TestCheckCommand(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	config := filepath.Join(dir, "config.yaml")
	text := "apiVersion: " + control.ConfigFileAPIVersion + "\nkind: " + control.ConfigFileKind + "\ndataDir: " + dir +
		"/data\naudit: {log: {maxAge: 30}}\n"
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name   string
		args   []string
		code   int
		output string // part of it
		err    string // instead of an exit code
	}{
		{"a server that does not run", []string{"--cis"}, 2, "not checked: the server is not reachable: kubeconfig " +
			dir + "/data/admin.kubeconfig: ", ""},
		{"a setting of the file", []string{"--cis"}, 2, " --audit-log-maxage=30\n", ""},
		{"a flag takes precedence", []string{"--cis", "--audit-log-maxage=7"}, 1, " --audit-log-maxage=7\n", ""},
		{"JSON", []string{"--cis", "-o", "json"}, 2, `"verdict": "NOTCHECKED"`, ""},
		{"no check is selected", nil, 0, "", "cis: required: select the checks with --cis"},
		{"unknown format", []string{"--cis", "-o", "xml"}, 0, "", `output: "xml" is not supported: must be json`},
		{"invalid setting", []string{"--cis", "--event-ttl=0s"}, 0, "", "event-ttl: 0s is too short"},
		{"missing file", []string{"--cis", "--config", dir + "/none"}, 0, "", "no such file"},
	} {
		cmd := checkCommand()
		var out strings.Builder
		cmd.SetOut(&out)
		cmd.SilenceErrors, cmd.SilenceUsage = true, true
		cmd.SetArgs(append([]string{"--config", config}, c.args...))
		err := cmd.ExecuteContext(t.Context())
		code := 0
		if exit, ok := errors.AsType[*exitError](err); ok {
			code = exit.code
		} else if err == nil || c.err == "" || !strings.Contains(err.Error(), c.err) {
			t.Errorf("%s: got error %v, want %q", c.name, err, c.err)
		}
		if code != c.code || !strings.Contains(out.String(), c.output) {
			t.Errorf("%s: got exit code %d, want %d, output\n%s", c.name, code, c.code, out.String())
		}
	}
}
