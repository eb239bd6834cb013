package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"berth/test/hosts"
)

const (
	manyServices = 10_000
	// settle is the time before memory is measured: longer than the agent waits before it releases memory.
	settle = 8 * time.Second
	// serviceChanges is the number of changes of an endpoint in a round.
	serviceChanges = 10
)

// proxyNode is a network namespace with a Service proxy, the API server that it watches and two endpoints.
type proxyNode struct {
	ns     netns.NsHandle
	api    *serviceAPI
	server *http.Server
	cmd    *exec.Cmd
	routed time.Duration // from the start to the first connection through a Service
	second bool          // the probed Service leads to the second endpoint
}

// do runs f in the namespace.
func (p *proxyNode) do(f func() error) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with the goroutine
		err := netns.Set(p.ns)
		if err == nil {
			err = f()
		}
		done <- err
	}()
	return <-done
}

// newProxyNode makes a namespace with n Services.
func newProxyNode(n int) (p *proxyNode, err error) {
	p = &proxyNode{}
	made := make(chan error)
	go func() {
		runtime.LockOSThread()
		var err error
		p.ns, err = netns.New()
		made <- err
	}()
	if err := <-made; err != nil {
		return nil, err
	}
	err = p.do(func() error {
		lo, err := netlink.LinkByName("lo")
		if err != nil {
			return err
		}
		errs := []error{netlink.LinkSetUp(lo)}
		for _, a := range []string{"192.0.2.1", podAddress, firstEndpoint, secondEndpoint} {
			address, err := netlink.ParseAddr(a + "/32")
			errs = append(errs, err, netlink.AddrAdd(lo, address))
		}
		// ClusterIPs need a route; where it leads does not matter.
		errs = append(errs, netlink.RouteAdd(&netlink.Route{LinkIndex: lo.Attrs().Index, Scope: netlink.SCOPE_LINK,
			Dst: &net.IPNet{IP: net.IPv4(10, 43, 0, 0), Mask: net.CIDRMask(16, 32)}}))
		return errors.Join(errs...)
	})
	if err == nil {
		err = p.endpoints()
	}
	if err != nil {
		p.stop()
		return nil, err
	}
	p.api = newServiceAPI(benchServices(n))
	var l net.Listener
	err = p.do(func() (err error) {
		l, err = (&net.ListenConfig{}).Listen(context.Background(), "tcp", "127.0.0.1:8001")
		return err
	})
	if err != nil {
		p.stop()
		return nil, err
	}
	p.server = p.api.serve(l)
	return p, nil
}

// endpoints serves both endpoints: each sends its number and waits for the end of the connection.
func (p *proxyNode) endpoints() error {
	for i, a := range []string{firstEndpoint, secondEndpoint} {
		var l net.Listener
		if err := p.do(func() (err error) {
			l, err = (&net.ListenConfig{}).Listen(context.Background(), "tcp", a+":8080")
			return err
		}); err != nil {
			return err
		}
		go func() { // ends with the program
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				go func() {
					_, _ = c.Write([]byte{byte('1' + i)})
					_, _ = io.Copy(io.Discard, c)
					_ = c.Close()
				}()
			}
		}()
	}
	return nil
}

// podAddress is in the range of the node's pods: the proxies do not masquerade it.
const podAddress = "10.1.0.5"

// connectWithin opens a connection through the probed Service and returns which endpoint has answered. The
// caller is in the namespace.
func connectWithin(limit time.Duration) (byte, error) {
	from := &net.TCPAddr{IP: net.ParseIP(podAddress)}
	c, err := (&net.Dialer{Timeout: limit, LocalAddr: from}).Dial("tcp", probeClusterIP+":80")
	if err != nil {
		return 0, err
	}
	defer func() { _ = c.Close() }()
	if tcp, is := c.(*net.TCPConn); is { // no state stays behind that a later connection could meet
		_ = tcp.SetLinger(0)
	}
	_ = c.SetDeadline(time.Now().Add(limit))
	b := make([]byte, 1)
	_, err = io.ReadFull(c, b)
	return b[0], err
}

// start starts a proxy and measures the time until it routes.
func (p *proxyNode) start(ctx context.Context, cmd *exec.Cmd) error {
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	started := make(chan error)
	go func() { // Pdeathsig is sent when the thread ends: this one lives as long as the program
		runtime.LockOSThread()
		err := netns.Set(p.ns)
		if err == nil {
			err = cmd.Start()
		}
		started <- err
		select {}
	}()
	begin := time.Now()
	if err := <-started; err != nil {
		return err
	}
	p.cmd = cmd
	return p.do(func() error {
		for {
			if got, _ := connectWithin(50 * time.Millisecond); got == '1' {
				break
			}
			if err := ctx.Err(); err != nil {
				return err
			}
			if time.Since(begin) > 2*time.Minute {
				return errors.New("the proxy does not route")
			}
			time.Sleep(5 * time.Millisecond)
		}
		p.routed = time.Since(begin)
		return nil
	})
}

// change moves the probed Service to its other endpoint and returns the time until connections go there.
func (p *proxyNode) change() (took time.Duration, err error) {
	p.second = !p.second
	endpoint, want := firstEndpoint, byte('1')
	if p.second {
		endpoint, want = secondEndpoint, '2'
	}
	err = p.do(func() error {
		begin := time.Now()
		p.api.update(benchSlice(probeService, endpoint))
		for { // a connection that meets the change may be lost
			if got, _ := connectWithin(100 * time.Millisecond); got == want {
				break
			}
			if time.Since(begin) > time.Minute {
				return errors.New("the change has no effect")
			}
		}
		took = time.Since(begin)
		return nil
	})
	return took, err
}

func (p *proxyNode) stop() {
	if p == nil {
		return
	}
	if p.cmd != nil {
		_ = p.cmd.Process.Signal(unix.SIGTERM)
		_ = p.cmd.Wait() // killed by the signal
	}
	if p.api != nil {
		close(p.api.closed)
	}
	if p.server != nil {
		_ = p.server.Close()
	}
	if p.ns.IsOpen() {
		_ = p.ns.Close()
	}
}

// services measures the Service proxy: memory and time to start by number of Services, and with many Services
// the time from a change of an endpoint at the API server to its effect on connections.
func (b *bench) services(ctx context.Context) (err error) {
	dir, err := os.MkdirTemp("", "berth-bench-services-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	proxies := map[string]func() *exec.Cmd{"berth": func() *exec.Cmd {
		cmd := exec.Command("/proc/self/exe")
		cmd.Env, cmd.Stderr = append(os.Environ(), proxyEnv+"=http://127.0.0.1:8001"), os.Stderr
		return cmd
	}}
	if *peers {
		program, err := buildKubeProxy(ctx)
		if err != nil {
			return err
		}
		config := filepath.Join(dir, "kube-proxy.yaml")
		if err := os.WriteFile(config, []byte(kubeProxyConfig), 0o600); err != nil {
			return err
		}
		proxies["kube-proxy"] = func() *exec.Cmd {
			return exec.Command(program, "--config", config, "--master", "http://127.0.0.1:8001", "-v", "0")
		}
	}
	memory, routed := map[string][]string{}, map[string][]string{}
	running := map[string]*proxyNode{}
	defer func() {
		for _, p := range running {
			p.stop()
		}
	}()
	for _, name := range slices.Sorted(maps.Keys(proxies)) {
		command := proxies[name]
		var empty int64
		for _, n := range []int{0, 100, 1000, manyServices} {
			p, err := newProxyNode(n)
			if err != nil {
				return err
			}
			running[name] = p
			if err := p.start(ctx, command()); err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
			if err := pause(ctx, settle); err != nil {
				return err
			}
			rss, err := rssOf(p.cmd.Process.Pid)
			if err != nil {
				return err
			}
			if n == 0 {
				empty = rss
				p.stop()
				continue
			}
			memory[name] = append(memory[name], mib(rss-empty))
			routed[name] = append(routed[name], p.routed.Round(10*time.Millisecond).String())
			if n != manyServices {
				p.stop()
			}
		}
	}
	const by = ", 100 / 1,000 / 10,000 Services"
	join := func(all []string) string { return strings.Join(all, " / ") }
	b.add("Service proxy: added memory"+by, join(memory["berth"]), join(memory["kube-proxy"]), "", "<= 80 MiB")
	b.add("Service proxy: process start to first connection"+by, join(routed["berth"]), join(routed["kube-proxy"]), "",
		"below kube-proxy")
	return b.changeFigure(running["berth"])
}

// changeFigure measures changes of an endpoint with many Services.
func (b *bench) changeFigure(p *proxyNode) error {
	var changes []time.Duration
	for range *rounds * serviceChanges {
		took, err := p.change()
		if err != nil {
			return err
		}
		changes = append(changes, took)
	}
	slices.Sort(changes)
	b.add("Service proxy: change of an endpoint to its effect, 10,000 Services",
		ms(changes[len(changes)/2]), "-", "", "<= 20 ms")
	return nil
}

// kubeProxyConfig has no delays, so that only work is measured.
const kubeProxyConfig = `apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: nftables
hostnameOverride: n1
bindAddress: 127.0.0.1
detectLocalMode: NodeCIDR
nftables: {minSyncPeriod: 0s, syncPeriod: 1h}
conntrack: {maxPerCore: 0, min: 0}
`

// buildKubeProxy builds kube-proxy, once per version of Kubernetes and Go. It runs the program nft.
func buildKubeProxy(ctx context.Context) (string, error) {
	if _, err := exec.LookPath("nft"); err != nil {
		return "", errors.New("kube-proxy needs the program nft: install the package nftables")
	}
	repo, err := hosts.RepoRoot()
	if err != nil {
		return "", err
	}
	module := filepath.Join(repo, "test", "bench", "kubeproxy")
	key, err := hosts.ModuleKey(module, "")
	if err != nil {
		return "", err
	}
	dir, err := hosts.Cached("kube-proxy", key, func(dir string) error {
		cmd := exec.CommandContext(ctx, "go", "build", "-ldflags", "-s -w", "-o", filepath.Join(dir, "kube-proxy"),
			"k8s.io/kubernetes/cmd/kube-proxy")
		cmd.Dir, cmd.Env = module, append(os.Environ(), "GOWORK=off", "CGO_ENABLED=0")
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("build kube-proxy: %w\n%s", err, out)
		}
		return nil
	})
	return filepath.Join(dir, "kube-proxy"), err
}
