package server

import (
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestNodeLogQueryIsParsedAndValidated(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		query string
		errs  string // of parsing or validation; empty: none
		args  []string
	}{
		"no query":        {query: ""},
		"other parameter": {query: "x=1"},
		"service":         {query: "query=kubelet", args: []string{"--unit=kubelet"}},
		"all options": {
			query: "query=a&query=b@1&tailLines=5&boot=-1&pattern=fail%7Cerror&sinceTime=2026-01-02T03:04:05Z&" +
				"untilTime=2026-01-02T04:04:05%2B01:00",
			args: []string{
				"--since=2026-01-02 03:04:05 UTC", "--until=2026-01-02 03:04:05 UTC", "--pager-end", "--lines=5",
				"--unit=a", "--unit=b@1", "--grep=fail|error", "--case-sensitive=true", "--boot", "-1",
			},
		},
		"empty query":            {query: "query=+", errs: "query cannot be empty"},
		"bad time":               {query: "query=a&sinceTime=yesterday", errs: "invalid time format"},
		"bad number":             {query: "query=a&tailLines=x", errs: "tailLines"},
		"too many lines":         {query: "query=a&tailLines=100001", errs: "must be between 0 and 100000"},
		"negative lines":         {query: "query=a&tailLines=-1", errs: "must be between 0 and 100000"},
		"future boot":            {query: "query=a&boot=1", errs: "must be less than 1"},
		"bad pattern":            {query: "query=a&pattern=(", errs: "missing closing"},
		"options without query":  {query: "tailLines=5", errs: "cannot be empty with options"},
		"file and service":       {query: "query=a&query=b/c", errs: "cannot specify a file and service"},
		"two files":              {query: "query=a/b&query=b/c", errs: "cannot specify more than one file"},
		"file with options":      {query: "query=a/b&tailLines=1", errs: "cannot specify file with options"},
		"five services":          {query: "query=a&query=b&query=c&query=d&query=e", errs: "must have at most 4"},
		"shell characters":       {query: "query=a;reboot", errs: "invalid semicolon"},
		"unsupported characters": {query: "query=a%3Breboot", errs: "unsupported characters"},
		"option as a service":    {query: "query=--file", errs: "unsupported characters"},
		"long name":              {query: "query=" + strings.Repeat("a", 257), errs: "may not be more than 256"},
		"until before since": {
			query: "query=a&sinceTime=2026-01-02T03:04:05Z&untilTime=2026-01-01T03:04:05Z",
			errs:  "must be after `sinceTime`",
		},
	} {
		values, err := url.ParseQuery(c.query)
		got := ""
		if err != nil {
			got = err.Error()
		}
		q, errs := parseNodeLogQuery(values)
		if q != nil {
			errs = append(errs, q.validate()...)
		}
		if len(errs) > 0 {
			got += errs.ToAggregate().Error()
		}
		if (got == "") != (c.errs == "") || !strings.Contains(got, c.errs) {
			t.Errorf("%s: got errors %q, want %q", name, got, c.errs)
		}
		if c.args == nil {
			continue
		}
		want := append([]string{"--utc", "--no-pager", "--output=short-precise"}, c.args...)
		if args := q.journalArgs(q.Services); !slices.Equal(args, want) {
			t.Errorf("%s: got arguments %q, want %q", name, args, want)
		}
	}
}

// fakeJournal writes a journalctl that knows the unit kubelet.service and prints its arguments.
func fakeJournal(t *testing.T) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "journalctl")
	script := "#!/bin/sh\nif [ \"$1\" = --field ]; then echo init.scope; echo kubelet.service; exit; fi\n" +
		"echo \"args $*\"\n"
	if err := os.WriteFile(file, []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	return file
}

func TestNodeLogsAreQueried(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for name, text := range map[string]string{
		"kube-proxy.log": "proxy started\n", "nginx/nginx.log": "nginx started\n", "plain": "plain file\n",
	} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	secret := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(secret, []byte("hidden"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(secret, filepath.Join(dir, "link.log")); err != nil {
		t.Fatal(err)
	}
	journal := fakeJournal(t)
	w := serve(t, func(o *Options) { o.Handlers.SystemLogDir, o.Handlers.Journal = dir, journal })
	none := serve(t, func(o *Options) {
		o.Handlers.SystemLogDir, o.Handlers.Journal = dir, filepath.Join(dir, "no-such-program")
	})
	off := serve(t, func(o *Options) { o.Handlers.SystemLogDir = dir })
	for name, c := range map[string]struct {
		server *testServer
		path   string
		code   int
		want   string
	}{
		"journal": {w, "/logs/?query=kubelet&tailLines=3", 200,
			"args --utc --no-pager --output=short-precise --pager-end --lines=3 --unit=kubelet\n"},
		"file of a service":     {w, "/logs/?query=kube-proxy", 200, "proxy started\n"},
		"directory of a file":   {w, "/logs/?query=nginx", 200, "nginx started\n"},
		"name of a file":        {w, "/logs/?query=plain", 200, "plain file\n"},
		"path of a file":        {w, "/logs/?query=/nginx/nginx.log", 200, "nginx started\n"},
		"unknown service":       {w, "/logs/?query=nothing", 200, "\nlog not found for nothing\n"},
		"link out":              {w, "/logs/?query=link", 200, "\nlog not found for link\n"},
		"escaping path":         {w, "/logs/?query=../../secret", 404, "404 page not found\n"},
		"file with options":     {w, "/logs/?query=nginx&tailLines=1", 200, "resolved to log files for [nginx]"},
		"invalid time":          {w, "/logs/?query=kubelet&sinceTime=x", 400, "invalid time format"},
		"invalid boot":          {w, "/logs/?query=kubelet&boot=1", 406, "must be less than 1"},
		"path and query":        {w, "/logs/plain?query=kubelet", 406, "path not allowed in query mode\n"},
		"path":                  {w, "/logs/plain", 200, "plain file\n"},
		"no journal":            {none, "/logs/?query=kubelet", 200, "\nlog not found for kubelet\n"},
		"no journal, file":      {none, "/logs/?query=kube-proxy", 200, "proxy started\n"},
		"queries are disabled":  {off, "/logs/?query=kube-proxy", 200, "<a href=\"kube-proxy.log\">"},
		"disabled, named a dir": {off, "/logs/nginx/?query=x", 200, "<a href=\"nginx.log\">"},
	} {
		code, body := request(t, c.server.master(t), http.MethodGet, c.server.url+c.path)
		if code != c.code || !strings.Contains(body, c.want) || strings.Contains(body, "hidden") {
			t.Errorf("%s: got %d %q, want %d %q", name, code, body, c.code, c.want)
		}
	}
}
