package networks

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/invoke"
	"github.com/containernetworking/cni/pkg/version"
)

const realPlugins = "/usr/lib/cni"

// inside runs plugins in a network namespace that stands for the node.
type inside struct{ netns string }

func (e inside) ExecPlugin(ctx context.Context, plugin string, stdin []byte, env []string) ([]byte, error) {
	c := exec.CommandContext(ctx, "nsenter", "--net="+e.netns, plugin)
	c.Env, c.Stdin = env, bytes.NewReader(stdin)
	var out, errs bytes.Buffer
	c.Stdout, c.Stderr = &out, &errs
	if err := c.Run(); err != nil {
		return nil, fmt.Errorf("%w: %s%s", err, out.Bytes(), errs.Bytes())
	}
	return out.Bytes(), nil
}

func (e inside) FindInPath(plugin string, paths []string) (string, error) {
	return invoke.FindInPath(plugin, paths)
}

func (e inside) Decode(text []byte) (version.PluginInfo, error) {
	return (&version.PluginDecoder{}).Decode(text)
}

func ip(t *testing.T, args ...string) {
	t.Helper()
	if out, err := exec.Command("ip", args...).CombinedOutput(); err != nil {
		t.Fatalf("ip %s: %v %s", strings.Join(args, " "), err, out)
	}
}

// netns makes a network namespace with a name of the test's own.
func netns(t *testing.T, name string) string {
	t.Helper()
	ip(t, "netns", "add", name)
	t.Cleanup(func() { ip(t, "netns", "del", name) })
	ip(t, "-n", name, "link", "set", "lo", "up")
	return "/run/netns/" + name
}

// TestCheckReportsChangedAttachment: with the reference plugins an unchanged network has no failures, and a
// changed one is reported once.
func TestCheckReportsChangedAttachment(t *testing.T) {
	t.Parallel()
	id := fmt.Sprintf("berth%dcheck", os.Getpid())
	node, pod, dir := netns(t, id+"n"), netns(t, id+"p"), t.TempDir()
	conf := fmt.Sprintf(`{"cniVersion":"1.0.0","name":"a","plugins":[{"type":"bridge","bridge":"side","ipam":{
		"type":"host-local","dataDir":%q,"ranges":[[{"subnet":"10.1.7.0/24"}]]}}]}`, filepath.Join(dir, "addresses"))
	if err := os.WriteFile(filepath.Join(dir, "a.conflist"), []byte(conf), 0o644); err != nil {
		t.Fatal(err)
	}
	o := Options{Dir: filepath.Join(dir, "state"), ConfDir: dir, BinDirs: []string{realPlugins}}
	n, err := newNetworks(o, inside{node})
	if err != nil {
		t.Fatal(err)
	}
	resolved, err := n.Resolve(podWith("a@data"))
	if err != nil {
		t.Fatal(err)
	}
	if err := n.Attach(t.Context(), "s", pod, podWith("a@data"), resolved); err != nil {
		t.Fatal(err)
	}
	if n, err = newNetworks(o, inside{node}); err != nil { // restarted agent
		t.Fatal(err)
	}
	if failures := n.Check(t.Context()); len(failures) > 0 {
		t.Errorf("%+v", failures)
	}
	ip(t, "-n", id+"p", "addr", "flush", "dev", "data")
	failures := n.Check(t.Context())
	if len(failures) != 1 || failures[0].Pod.Name != "p" ||
		!strings.Contains(failures[0].Message, `network "a" on data: `) {
		t.Errorf("%+v", failures)
	}
	if again := n.Check(t.Context()); len(again) > 0 {
		t.Errorf("reported again: %+v", again)
	}
	if err := n.Detach(t.Context(), "s"); err != nil {
		t.Error(err)
	}
	if known, _ := filepath.Glob(filepath.Join(dir, "addresses", "a", "10.*")); len(known) > 0 {
		t.Errorf("namespaces in use: %v", known)
	}
}
