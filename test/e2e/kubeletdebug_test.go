package e2e

import (
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
)

// send sends a request with a body.
func (a *kubeletClient) send(method, path, text string) (int, string) {
	a.t.Helper()
	req, err := http.NewRequestWithContext(a.t.Context(), method, a.config.Host+path, strings.NewReader(text))
	if err != nil {
		a.t.Fatal(err)
	}
	resp, err := a.http.Do(req)
	if err != nil {
		a.t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		a.t.Fatal(err)
	}
	return resp.StatusCode, string(body)
}

// checkDebugEndpoints checks profiles, log verbosity, queries of node logs, and checkpoints. The hosts have
// no CRIU, and containerd 1.6 has no checkpoints.
func (a *kubeletClient) checkDebugEndpoints() {
	for path, want := range map[string]struct {
		code int
		text string
	}{
		"/debug/pprof/goroutine?debug=1":                   {200, "goroutine profile: total"},
		"/debug/pprof/cmdline":                             {200, "run"},
		"/logs/?query=no-such-service":                     {200, "log not found for no-such-service"},
		"/logs/?query=no-such-service&tailLines=1":         {200, "options present and query resolved to log files"},
		"/logs/?query=containers/../../../etc/no-such":     {404, "not found"},
		"/logs/?query=no-such-service&sinceTime=yesterday": {400, "invalid time format"},
	} {
		if code, body := a.get(path); code != want.code || !strings.Contains(body, want.text) {
			a.t.Errorf("%s: got %d %.300q, want %d %q", path, code, body, want.code, want.text)
		}
	}
	if code, body := a.send(http.MethodPut, "/debug/flags/v", "4"); code != 200 || !strings.HasSuffix(body, " to 4") {
		a.t.Errorf("log verbosity: %d %s", code, body)
	}
	for path, want := range map[string]struct {
		code int
		text string
	}{
		"/echoes/c":              {500, "checkpoint container "},
		"/echoes/no":             {404, `container not found ("no")`},
		"/none/c":                {404, `pods "none" not found`},
		"/echoes/c?timeout=soon": {400, "must be a number of seconds"},
	} {
		code, body := a.send(http.MethodPost, "/checkpoint/"+a.ns+path, "")
		if code != want.code || !strings.Contains(body, want.text) {
			a.t.Errorf("checkpoint of %s: got %d %q, want %d %q", path, code, body, want.code, want.text)
		}
	}
	if files, err := filepath.Glob(filepath.Join(a.Agent.RootDir, "checkpoints", "*")); err != nil || len(files) > 0 {
		a.t.Errorf("archives of failed checkpoints: %v, %v", files, err)
	}
	if _, err := os.Stat(filepath.Join(a.Agent.RootDir, "checkpoints")); err != nil {
		a.t.Errorf("directory of checkpoints: %v", err)
	}
}
