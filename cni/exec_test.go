package cni

import (
	"bytes"
	"context"
	"fmt"
	"os/exec"

	"github.com/containernetworking/cni/pkg/invoke"
	"github.com/containernetworking/cni/pkg/version"
)

// inside runs plugins in the network namespace that represents the node.
type inside struct{ netns string }

func (in inside) ExecPlugin(ctx context.Context, plugin string, stdin []byte, env []string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, "nsenter", "--net="+in.netns, plugin)
	var stderr bytes.Buffer
	cmd.Env, cmd.Stdin, cmd.Stderr = env, bytes.NewReader(stdin), &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("%w: %s%s", err, out, stderr.String())
	}
	return out, nil
}

func (inside) FindInPath(plugin string, paths []string) (string, error) {
	return invoke.FindInPath(plugin, paths)
}

func (inside) Decode(text []byte) (version.PluginInfo, error) {
	return new(version.PluginDecoder).Decode(text)
}
