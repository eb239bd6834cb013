package dnsdifferential

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"berth/test/hosts"
)

// corefile is the usual configuration of CoreDNS in a cluster, with a port, a kubeconfig and the port of an
// upstream server.
const corefile = `.:%d {
    bind 127.0.0.1
    errors
    kubernetes cluster.local in-addr.arpa ip6.arpa {
        kubeconfig %s
        pods insecure
        fallthrough in-addr.arpa ip6.arpa
        ttl 30
    }
    forward . 127.0.0.1:%d {
        max_concurrent 1000
    }
    cache 30 {
        disable success cluster.local
        disable denial cluster.local
    }
    loadbalance
}
`

// WriteCorefile writes a Corefile to dir and returns its path.
func WriteCorefile(dir string, port int, kubeconfig string, upstream uint16) (path string, err error) {
	path = filepath.Join(dir, "Corefile")
	return path, os.WriteFile(path, fmt.Appendf(nil, corefile, port, kubeconfig, upstream), 0o644)
}

// BuildCoreDNS builds CoreDNS with the plugins of a cluster, once per version of it and of Go.
func BuildCoreDNS(ctx context.Context) (program string, err error) {
	repo, err := hosts.RepoRoot()
	if err != nil {
		return "", err
	}
	module := filepath.Join(repo, "test", "conformance", "coredns")
	key, err := hosts.ModuleKey(module, "")
	if err != nil {
		return "", err
	}
	dir, err := hosts.Cached("coredns", key, func(dir string) error {
		cmd := exec.CommandContext(ctx, "go", "build", "-ldflags", "-s -w", "-o", filepath.Join(dir, "coredns"), ".")
		cmd.Dir = module
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=-buildvcs=false", "GOWORK=off")
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("go build coredns: %w\n%s", err, out)
		}
		return nil
	})
	return filepath.Join(dir, "coredns"), err
}
