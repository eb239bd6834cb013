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

// Timeouts of a wait. They are much longer than any operation takes on an idle machine, because
// the machine may be busy.
const (
	waitTimeout     = 8 * time.Minute
	deletionTimeout = 8 * time.Minute
)

// restartBackOff is the initial and the maximum restart back-off of the agents.
const restartBackOff = 2 * time.Second

func TestMain(m *testing.M) {
	hosts.SetDefaultParallelism(2)
	code := m.Run()
	for _, n := range shared.all() {
		if err := n.stop(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = max(code, 1)
		}
	}
	os.Exit(code)
}

// Node is a host with an agent.
type Node struct {
	Host    *hosts.Host
	Agent   *hosts.Agent
	Client  *nodeapi.Client
	Open    *images.Registry // serves docker.io to this node without authentication
	Private *images.Registry // serves private.example to this node, requires privateUser
}

const (
	privateHost     = "private.example"
	privateUser     = "reader"
	privatePassword = "s3cret-word"
)

// shared holds the nodes that most tests use. The first test that needs a node starts it.
var shared = &pool{start: map[hosts.Version]func() (*Node, error){}, nodes: map[hosts.Version]*Node{}}

type pool struct {
	mu    sync.Mutex
	start map[hosts.Version]func() (*Node, error)
	nodes map[hosts.Version]*Node
}

func (p *pool) get(v hosts.Version) (*Node, error) {
	p.mu.Lock()
	start, ok := p.start[v]
	if !ok {
		start = sync.OnceValues(func() (*Node, error) {
			n, err := startNode(v, nodeOptions{CNI: true})
			if err == nil {
				p.mu.Lock()
				p.nodes[v] = n
				p.mu.Unlock()
			}
			return n, err
		})
		p.start[v] = start
	}
	p.mu.Unlock()
	return start()
}

func (p *pool) all() []*Node {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Collect(maps.Values(p.nodes))
}

// artifacts builds the program under test and the images, once.
var artifacts = sync.OnceValues(func() (a struct {
	berth, race string // the program, and the same with the race detector
	images      []images.Archive
}, err error) {
	ctx := context.Background()
	if a.berth, err = hosts.BuildBerth(ctx, hosts.BuildOptions{}); err != nil {
		return a, err
	}
	if a.race, err = hosts.BuildBerth(ctx, hosts.BuildOptions{Race: true}); err != nil {
		return a, err
	}
	dir, err := images.CacheDir()
	if err != nil {
		return a, err
	}
	a.images, err = images.All(ctx, dir)
	return a, err
})

func findArchive(ref string) (images.Archive, error) {
	a, err := artifacts()
	if err != nil {
		return images.Archive{}, err
	}
	for _, x := range a.images {
		if x.Ref == ref {
			return x, nil
		}
	}
	return images.Archive{}, fmt.Errorf("image %s not found", ref)
}

type nodeOptions struct {
	CNI    bool
	Config map[string]any
	Berth  map[string]any
	Args   []string
	Nodefs string     // see hosts.AgentOptions
	LAN    *hosts.LAN // connects the host; the agent detects the node's addresses
	Disk   string     // see hosts.Options; the node then has only the testbox image
	// ConfigForHost returns configuration that depends on the host. It overrides Config.
	ConfigForHost func(*hosts.Host) (map[string]any, error)
}

// startNode starts a host and an agent, and waits until the agent is ready.
func startNode(v hosts.Version, o nodeOptions) (n *Node, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), 15*time.Minute)
	defer cancel()
	built, err := artifacts()
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
	if n.Private, err = images.NewRegistry(images.RegistryOptions{User: privateUser,
		Password: privatePassword}); err != nil {
		return n, err
	}
	var localImages []string
	for _, a := range built.images {
		if o.Disk != "" && a.Ref != images.TestboxRef {
			continue
		}
		if a.Ref != images.PauseRef && !strings.HasPrefix(a.Ref, "docker.io/library/nginx:l") {
			localImages = append(localImages, a.Path)
		}
	}
	// With the tag "latest" or no tag, the default pull policy is Always.
	for _, ref := range []string{images.StressRef, "docker.io/library/nginx:latest",
		"docker.io/library/busybox:latest"} {
		a, err := findArchive(ref)
		if err != nil {
			return n, err
		}
		if err := n.Open.PushOnDemand(a); err != nil {
			return n, err
		}
	}
	if n.Host, err = hosts.Start(ctx, hosts.Options{Version: v, CNI: o.CNI, Images: localImages, Disk: o.Disk,
		LAN: o.LAN}); err != nil {
		return n, err
	}
	if err := errors.Join(n.Open.HostsToml(n.Host.CertsDir(), "docker.io"),
		n.Private.HostsToml(n.Host.CertsDir(), privateHost)); err != nil {
		return n, err
	}
	// With the race detector, berth takes four times as much CPU time: half of the agents have it, and no command.
	agent := built.berth
	if v == hosts.Version2 {
		agent = built.race
	}
	config := map[string]any{
		"maxParallelImagePulls": 12, // tests block several pulls at the same time
		"crashLoopBackOff":      map[string]any{"maxContainerRestartPeriod": restartBackOff.String()},
		"clusterDNS":            []string{"10.96.0.10"},
		"clusterDomain":         "cluster.local",
		"allowedUnsafeSysctls":  []string{"net.core.somaxconn"},
	}
	maps.Copy(config, o.Config)
	if o.ConfigForHost != nil {
		extra, err := o.ConfigForHost(n.Host)
		if err != nil {
			return n, err
		}
		maps.Copy(config, extra)
	}
	n.Agent, err = hosts.StartAgent(ctx, hosts.AgentOptions{
		Binary: agent, Client: built.berth, Host: n.Host, Config: config, BerthConfig: o.Berth, Nodefs: o.Nodefs,
		DetectNodeIPs: o.LAN != nil,
		ExtraArgs:     append([]string{"--node-labels", "zone=a,disk=ssd"}, o.Args...),
		Env:           []string{"GORACE=halt_on_error=1 exitcode=66 atexit_sleep_ms=0"},
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

// stop stops a node whose pods are deleted. The error lists resources leaked by the pods and the node.
func (n *Node) stop() error {
	ctx, cancel := context.WithTimeout(context.Background(), deletionTimeout)
	defer cancel()
	var errs []error
	if n.Agent != nil && n.Client != nil {
		err := hosts.WaitFor(ctx, "pod resources to be removed", func() (bool, error) {
			return len(n.Host.PodResources()) == 0, nil
		})
		if err != nil {
			errs = append(errs, fmt.Errorf("%w:\n%s\n%s", err, strings.Join(n.Host.PodResources(), "\n"),
				n.Agent.Log()))
		}
		for _, dir := range []string{filepath.Join(n.Agent.RootDir, "pods"), n.Agent.LogsDir,
			filepath.Join(n.Agent.LogsDir, "..", "containers")} {
			if left, err := os.ReadDir(dir); err == nil && len(left) > 0 {
				errs = append(errs, fmt.Errorf("pod files remain in %s: %v", dir, left))
			}
		}
		errs = append(errs, n.Agent.Stop(ctx))
		if strings.Contains(n.Agent.Log(), "DATA RACE") {
			errs = append(errs, fmt.Errorf("data race in the agent:\n%s", n.Agent.Log()))
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
		if left := n.Host.Leaks(); len(left) > 0 {
			errs = append(errs, fmt.Errorf("leaked by the host:\n%s", strings.Join(left, "\n")))
		}
	}
	return errors.Join(errs...)
}

// writeSeccomp writes a seccomp profile that denies mkdir to the node.
func (n *Node) writeSeccomp() error {
	dir := filepath.Join(n.Agent.RootDir, "seccomp", "profiles")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	text := `{"defaultAction": "SCMP_ACT_ALLOW", "architectures": ["SCMP_ARCH_X86_64", "SCMP_ARCH_AARCH64"],
		"syscalls": [{"names": ["mkdir", "mkdirat"], "action": "SCMP_ACT_ERRNO", "errnoRet": 1}]}`
	return os.WriteFile(filepath.Join(dir, "no-mkdir.json"), []byte(text), 0o644)
}
