package e2e

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"berth/nodeapi"
	"berth/test/hosts"
	"berth/test/images"
)

// Bounds: what a test waits for at most. Far longer than anything takes on an
// idle machine, because the machine may not be idle.
const (
	waitBound = 4 * time.Minute
	goneBound = 4 * time.Minute
)

// crashBase is the agents' first and longest wait between restarts.
const crashBase = 2 * time.Second

func TestMain(m *testing.M) {
	hosts.SetDefaultParallelism(10)
	code := m.Run()
	for _, n := range shared.all() {
		if err := n.stop(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = max(code, 1)
		}
	}
	os.Exit(code)
}

// Node is a host with an agent, as tests see it.
type Node struct {
	Host    *hosts.Host
	Agent   *hosts.Agent
	Client  *nodeapi.Client
	Open    *images.Registry // serves docker.io to this node, and counts
	Private *images.Registry // serves private.example to this node, for user "reader"
}

const (
	privateHost     = "private.example"
	privateUser     = "reader"
	privatePassword = "s3cret-word"
)

// shared are the nodes that most tests use, made by the first test that needs them.
var shared = &pool{made: map[hosts.Version]func() (*Node, error){}, nodes: map[hosts.Version]*Node{}}

type pool struct {
	mu    sync.Mutex
	made  map[hosts.Version]func() (*Node, error)
	nodes map[hosts.Version]*Node
}

func (p *pool) get(v hosts.Version) (*Node, error) {
	p.mu.Lock()
	f, ok := p.made[v]
	if !ok {
		f = sync.OnceValues(func() (*Node, error) {
			n, err := startNode(v, nodeOptions{CNI: true})
			if err == nil {
				p.mu.Lock()
				p.nodes[v] = n
				p.mu.Unlock()
			}
			return n, err
		})
		p.made[v] = f
	}
	p.mu.Unlock()
	return f()
}

func (p *pool) all() []*Node {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Collect(maps.Values(p.nodes))
}

// artifacts are the program under test and the images, made once.
var artifacts = sync.OnceValues(func() (a struct {
	berth  string
	images []images.Archive
}, err error) {
	ctx := context.Background()
	if a.berth, err = hosts.BuildBerth(ctx, hosts.BuildOptions{Race: true}); err != nil {
		return a, err
	}
	dir, err := images.CacheDir()
	if err != nil {
		return a, err
	}
	a.images, err = images.All(ctx, dir)
	return a, err
})

func archive(ref string) (images.Archive, error) {
	a, err := artifacts()
	if err != nil {
		return images.Archive{}, err
	}
	for _, x := range a.images {
		if x.Ref == ref {
			return x, nil
		}
	}
	return images.Archive{}, fmt.Errorf("there is no image %s", ref)
}

type nodeOptions struct {
	CNI    bool
	Config map[string]any
	Berth  map[string]any
	Args   []string
	Nodefs string     // see hosts.AgentOptions
	LAN    *hosts.LAN // to plug the host into; its agent finds the node's addresses
	Disk   string     // see hosts.Options; such a node has only the test program's image
	// More is configuration that depends on the host; it wins over Config.
	More func(*hosts.Host) (map[string]any, error)
}

// startNode makes a host with an agent that answers.
func startNode(v hosts.Version, o nodeOptions) (n *Node, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), 15*time.Minute)
	defer cancel()
	made, err := artifacts()
	if err != nil {
		return nil, err
	}
	n = &Node{}
	defer func() {
		if err != nil {
			err = errors.Join(err, n.stop())
		}
	}()
	if n.Open, err = images.NewRegistry(images.RegistryOptions{}); err != nil {
		return n, err
	}
	if n.Private, err = images.NewRegistry(images.RegistryOptions{User: privateUser, Password: privatePassword}); err != nil {
		return n, err
	}
	var local []string
	for _, a := range made.images {
		if o.Disk != "" && a.Ref != images.TestboxRef {
			continue
		}
		if a.Ref != images.PauseRef && !strings.HasPrefix(a.Ref, "docker.io/library/nginx:l") {
			local = append(local, a.Path)
		}
	}
	// With a tag of "latest" or none a pod asks the registry each time.
	for _, ref := range []string{images.StressRef, "docker.io/library/nginx:latest", "docker.io/library/busybox:latest"} {
		a, err := archive(ref)
		if err != nil {
			return n, err
		}
		if err := n.Open.Push(ctx, a); err != nil {
			return n, err
		}
	}
	if n.Host, err = hosts.Start(ctx, hosts.Options{Version: v, CNI: o.CNI, Images: local, Disk: o.Disk, LAN: o.LAN}); err != nil {
		return n, err
	}
	if err := errors.Join(n.Open.HostsToml(n.Host.CertsDir(), "docker.io"), n.Private.HostsToml(n.Host.CertsDir(), privateHost)); err != nil {
		return n, err
	}
	config := map[string]any{
		"maxParallelImagePulls": 12, // tests hold several up at once
		"crashLoopBackOff":      map[string]any{"maxContainerRestartPeriod": crashBase.String()},
		"clusterDNS":            []string{"10.96.0.10"},
		"clusterDomain":         "cluster.local",
		"allowedUnsafeSysctls":  []string{"net.core.somaxconn"},
	}
	maps.Copy(config, o.Config)
	if o.More != nil {
		more, err := o.More(n.Host)
		if err != nil {
			return n, err
		}
		maps.Copy(config, more)
	}
	n.Agent, err = hosts.StartAgent(ctx, hosts.AgentOptions{
		Binary: made.berth, Host: n.Host, Config: config, BerthConfig: o.Berth, Nodefs: o.Nodefs, DetectNodeIPs: o.LAN != nil,
		ExtraArgs: append([]string{"--node-labels", "zone=a,disk=ssd"}, o.Args...),
		Env:       []string{"GORACE=halt_on_error=1 exitcode=66 atexit_sleep_ms=0"},
	})
	if err != nil {
		return n, err
	}
	if n.Client, err = nodeapi.Dial(n.Agent.Socket); err != nil {
		return n, err
	}
	if err := n.writeSeccomp(); err != nil {
		return n, err
	}
	return n, n.Agent.WaitReady(ctx)
}

// stop ends a node without pods and says what its pods or itself left behind.
func (n *Node) stop() error {
	ctx, cancel := context.WithTimeout(context.Background(), goneBound)
	defer cancel()
	var errs []error
	if n.Agent != nil && n.Client != nil {
		err := hosts.WaitFor(ctx, "nothing to be left of any pod", func() (bool, error) { return len(n.Host.PodLeftovers()) == 0, nil })
		if err != nil {
			errs = append(errs, fmt.Errorf("%w:\n%s\n%s", err, strings.Join(n.Host.PodLeftovers(), "\n"), n.Agent.Log()))
		}
		for _, dir := range []string{filepath.Join(n.Agent.RootDir, "pods"), n.Agent.LogsDir, filepath.Join(n.Agent.LogsDir, "..", "containers")} {
			if left, err := os.ReadDir(dir); err == nil && len(left) > 0 {
				errs = append(errs, fmt.Errorf("files of pods are left in %s: %v", dir, left))
			}
		}
		errs = append(errs, n.Agent.Stop(ctx))
		if strings.Contains(n.Agent.Log(), "DATA RACE") {
			errs = append(errs, fmt.Errorf("the agent has a data race:\n%s", n.Agent.Log()))
		}
		n.Client.Close()
	}
	for _, r := range []*images.Registry{n.Open, n.Private} {
		if r != nil {
			errs = append(errs, r.Close())
		}
	}
	if n.Host != nil {
		errs = append(errs, n.Host.Stop())
		if left := n.Host.Leftovers(); len(left) > 0 {
			errs = append(errs, fmt.Errorf("the host left behind:\n%s", strings.Join(left, "\n")))
		}
	}
	return errors.Join(errs...)
}
