package main

import (
	"context"
	"fmt"
	"net/netip"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"

	"berth/test/hosts"
)

// startBerthControl starts berth-control at an address of this machine and creates a token for the nodes.
func startBerthControl(ctx context.Context, p *programs, at netip.Addr, dir string, flags ...string) (*controlPlane,
	error) {
	port, err := hosts.FreePort()
	if err != nil {
		return nil, err
	}
	data := filepath.Join(dir, "data")
	pl := &controlPlane{kubectl: p.kubectl, kubeconfig: filepath.Join(data, "admin.kubeconfig"),
		server: fmt.Sprintf("https://%s:%d", at, port), dir: dir}
	if err := pl.start(ctx, "berth-control", p.control,
		append([]string{"serve", "--data-dir", data, "--bind-address", at.String(), "--secure-port",
			strconv.Itoa(port)}, flags...)...); err != nil {
		return pl, err
	}
	if err := pl.ready(ctx, "berth-control to be ready", "ok", "get", "--raw", "/readyz"); err != nil {
		return pl, err
	}
	line, err := exec.CommandContext(ctx, p.control, "token", "create", "--reusable", "--kubeconfig", pl.kubeconfig,
		"--server", pl.server).Output()
	if err != nil {
		return pl, fmt.Errorf("berth-control token create: %w", err)
	}
	words := strings.Fields(string(line))
	if len(words) < 3 || words[1] != "join" {
		// The error must not contain the token.
		return pl, fmt.Errorf("berth-control token create: unexpected output of %d words", len(words))
	}
	pl.join = words[2:]
	return pl, nil
}
