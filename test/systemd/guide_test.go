package systemd

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"berth/test/guide"
	"berth/test/hosts"
)

// TestOperatorGuide runs the commands of docs/operate.md and docs/troubleshoot.md on a fresh host, in
// the order of their blocks and without other commands.
func TestOperatorGuide(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Minute)
	defer cancel()
	repo, err := hosts.RepoRoot()
	if err != nil {
		t.Fatal(err)
	}
	sections, err := guide.ReadPages(filepath.Join(repo, "docs"), "operate.md", "troubleshoot.md")
	if err != nil {
		t.Fatal(err)
	}
	busybox := busyboxImage(ctx, t)
	kubectl, err := hosts.Kubectl()
	if err != nil {
		t.Fatal(err)
	}
	built, err := builtPackages()
	if err != nil {
		t.Fatal(err)
	}
	h := start(ctx, t, busybox.Path)
	// The guide assumes kubectl and the packages. The imported image replaces a registry.
	if err := h.Copy(kubectl, "/usr/local/bin/kubectl"); err != nil {
		t.Fatal(err)
	}
	for dir, all := range map[string]map[string]string{"/root/berth": built.first,
		"/root/berth-newer": built.newer} {
		for _, path := range all {
			if err := h.Copy(path, filepath.Join(dir, filepath.Base(path))); err != nil {
				t.Fatal(err)
			}
		}
	}
	r := &guideRunner{operator{t, h}}
	// No container may be restarted in these sections.
	noRestarts := map[string]bool{
		"Inspect": true, "Upgrade": true, "Back up": true, "Restore": true,
		"The node is NotReady: runtime down": true, "The server is not reachable": true,
	}
	for _, s := range sections {
		if len(s.Blocks) == 0 {
			continue
		}
		if !t.Run(s.Name, func(t *testing.T) {
			r.T = t
			var before string
			if noRestarts[s.Name] {
				before = r.tasks()
			}
			for _, b := range s.Blocks {
				r.run(b)
			}
			if noRestarts[s.Name] {
				r.checkNotRestarted(before)
			}
			delete(noRestarts, s.Name)
		}) {
			return
		}
	}
	if len(noRestarts) > 0 {
		t.Errorf("the guide has no sections %v", noRestarts)
	}
}

// guideRunner runs the blocks of the guide. Environment and working directory carry over from one
// block to the next.
type guideRunner struct{ operator }

const shellState = "/root/.guide-shell"

// run runs a block. A read-only block is repeated until its output matches.
func (r *guideRunner) run(b guide.Block) {
	r.Helper()
	script := "set -e\n[ ! -e " + shellState + " ] || . " + shellState + "\n" + b.Commands +
		"\n{ export -p; printf 'cd %q\\n' \"$PWD\"; } >" + shellState + "\n"
	ctx, cancel := context.WithTimeout(r.Context(), waitTimeout)
	defer cancel()
	var out string
	var mismatch error
	err := hosts.WaitFor(ctx, "the block of line "+fmt.Sprint(b.Line), func() (bool, error) {
		var err error
		out, err = r.host.RunWith(ctx, strings.NewReader(script), "bash", "-c", "exec 2>&1; . /dev/stdin")
		mismatch = b.Check(out, err)
		if mismatch != nil && !b.ReadOnly() {
			return false, mismatch
		}
		return mismatch == nil, nil
	})
	// The disk usage of this machine must not affect the test.
	if err == nil && strings.Contains(b.Commands, "./berth_") {
		r.until("berth to be active after the installation", "systemctl is-active berth")
		r.sh("grep -q ^evictionHard /etc/berth/config.yaml || { sed -i '" + ignoreDiskUsage +
			"' /etc/berth/config.yaml && systemctl reload berth; }")
	}
	if err != nil {
		r.Fatalf("docs/operate.md, line %d: %v\n%s\noutput:\n%s\n%s", b.Line, mismatch, b.Commands, out, r.journal())
	}
}
