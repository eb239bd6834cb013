package pair

import (
	"cmp"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	"k8s.io/client-go/util/jsonpath"

	"berth/control"
	"berth/control/pki"
	servers "berth/test/control"
	"berth/test/hosts"
	"berth/test/images"
)

const (
	waitBound = 4 * time.Minute
	goneBound = 4 * time.Minute
)

func TestMain(m *testing.M) {
	hosts.SetDefaultParallelism(3)
	os.Exit(m.Run())
}

// artifacts are the agent's program and the images, built once.
var artifacts = sync.OnceValues(func() (a struct {
	berth string
	local []string
}, err error) {
	ctx := context.Background()
	if a.berth, err = hosts.BuildBerth(ctx, hosts.BuildOptions{Race: true}); err != nil {
		return a, err
	}
	dir, err := images.CacheDir()
	if err != nil {
		return a, err
	}
	// Only the required images: each host imports each of them.
	for _, image := range []func(context.Context, string) (images.Archive, error){images.Testbox, images.Busybox,
		images.Nginx} {
		x, err := image(ctx, dir)
		if err != nil {
			return a, err
		}
		a.local = append(a.local, x.Path)
	}
	return a, nil
})

// Pair is a control server with a joined node.
type Pair struct {
	*servers.Server
	t     *testing.T
	Host  *hosts.Host
	Agent *hosts.Agent
	Node  string
	wire  *wire // nil if the connection cannot be interrupted
}

// in returns the pair for a subtest.
func (p *Pair) in(t *testing.T) *Pair {
	out := *p
	out.t = t
	return &out
}

// pairOptions are the options of a Pair.
type pairOptions struct {
	Server   []func(*control.Config)
	Config   map[string]any
	Berth    map[string]any
	Args     []string
	Env      []string      // of the agent's process, in addition to the defaults
	Nodefs   string        // see hosts.AgentOptions
	Disk     string        // see hosts.Options
	Name     string        // node name; default: the host's name
	Bare     bool          // the host has no network configuration
	Binary   string        // instead of the agent's program
	Handlers []string      // of the runtime, in addition to the defaults
	Version  hosts.Version // of containerd; default: the newer one
	LAN      *hosts.LAN    // network that the host is connected to
	Cut      bool          // the connection to the server can be interrupted: see Pair.wire
}

// start creates a server and a node that has joined it with the administrator's kubeconfig.
func start(t *testing.T, o pairOptions) *Pair {
	t.Helper()
	p := &Pair{t: t}
	p.Server = servers.Start(t, o.Server...)
	kubeconfig := p.Kubeconfig
	if o.Cut {
		p.wire = newWire(t, hostOf(t, p.Server.Config.Host))
		kubeconfig = p.wire.kubeconfig(kubeconfig)
	}
	p.host(o, "--kubeconfig", kubeconfig)
	p.nodeIs("Ready", "True")
	return p
}

// host creates the node's host and starts its agent.
func (p *Pair) host(o pairOptions, join ...string) {
	p.t.Helper()
	made, err := artifacts()
	if err != nil {
		p.t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 15*time.Minute)
	defer cancel()
	if p.Host, err = hosts.Start(ctx, hosts.Options{Version: cmp.Or(o.Version, hosts.Version2), CNI: !o.Bare,
		Handlers: o.Handlers, Disk: o.Disk, LAN: o.LAN, Images: made.local}); err != nil {
		p.t.Fatal(err)
	}
	p.Node = cmp.Or(o.Name, p.Host.Name)
	p.t.Cleanup(func() {
		if err := p.end(); err != nil {
			p.t.Error(err)
		}
	})
	config := p.trust()
	maps.Copy(config, o.Config)
	p.Agent, err = hosts.StartAgent(ctx, hosts.AgentOptions{
		Binary: cmp.Or(o.Binary, made.berth), Host: p.Host, NodeName: p.Node, Config: config, BerthConfig: o.Berth,
		Nodefs:    o.Nodefs,
		ExtraArgs: append(join, o.Args...), Env: append([]string{"GORACE=halt_on_error=1 exitcode=66 atexit_sleep_ms=0"},
			o.Env...),
	})
	if err != nil {
		p.t.Fatal(err)
	}
	if err := p.Agent.WaitReady(ctx); err != nil {
		p.t.Fatal(err)
	}
}

// trust is a configuration with which the server and the node's API trust each other: both have
// certificates of the server's CA.
func (p *Pair) trust() map[string]any {
	p.t.Helper()
	dir := filepath.Join(filepath.Dir(p.Kubeconfig), "pki")
	authority, err := pki.Open(dir, time.Now)
	if err != nil {
		p.t.Fatal(err)
	}
	cert, key, err := authority.Issue(pki.Subject{
		Name: "system:node:" + p.Node, Groups: []string{"system:nodes"}, ExtKeyUsages: []x509.ExtKeyUsage{
			x509.ExtKeyUsageServerAuth},
		DNSNames: []string{p.Node}, IPAddresses: []net.IP{p.Host.Gateway.AsSlice()},
	})
	own := p.t.TempDir()
	certFile, keyFile := filepath.Join(own, "node.crt"), filepath.Join(own, "node.key")
	if err := errors.Join(err, os.WriteFile(certFile, cert, 0o600), os.WriteFile(keyFile, key, 0o600)); err != nil {
		p.t.Fatal(err)
	}
	return map[string]any{
		"authentication": map[string]any{"x509": map[string]any{"clientCAFile": filepath.Join(dir, "ca.crt")}},
		"tlsCertFile":    certFile, "tlsPrivateKeyFile": keyFile,
	}
}

// end stops the agent and reports leftovers of the agent and its pods.
func (p *Pair) end() error {
	ctx, cancel := context.WithTimeout(context.Background(), goneBound)
	defer cancel()
	var errs []error
	if p.Agent != nil {
		if p.t.Failed() {
			p.t.Logf("the agent's log:\n%s", p.Agent.Log())
		}
		errs = append(errs, p.Agent.Stop(ctx))
		if strings.Contains(p.Agent.Log(), "DATA RACE") {
			errs = append(errs, fmt.Errorf("the agent has a data race:\n%s", p.Agent.Log()))
		}
	}
	return errors.Join(append(errs, p.Host.Stop())...)
}

// until repeats f until it returns "".
func (p *Pair) until(what string, f func() string) {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.t.Context(), waitBound)
	defer cancel()
	last := ""
	err := hosts.WaitFor(ctx, what, func() (bool, error) {
		last = f()
		return last == "", nil
	})
	if err != nil {
		p.t.Fatalf("%v: %s", err, last)
	}
}

// field returns a field of a node, or of a pod in the namespace default, in the format of kubectl
// get --ignore-not-found -o jsonpath. It is called often, and a kubectl process for each call would
// use too much CPU time.
func (p *Pair) field(kind, name, path string) string {
	get := p.Client.CoreV1().RESTClient().Get().Resource(kind + "s").Name(name)
	if kind != "node" {
		get = get.Namespace(metav1.NamespaceDefault)
	}
	text, err := get.SetHeader("Accept", "application/json").DoRaw(p.t.Context())
	if apierrors.IsNotFound(err) {
		return ""
	}
	object := map[string]any{}
	query := jsonpath.New(path).AllowMissingKeys(true)
	var out strings.Builder
	if err == nil {
		err = errors.Join(utiljson.Unmarshal(text, &object), query.Parse("{"+path+"}"))
	}
	if err == nil {
		err = query.Execute(&out, object)
	}
	if err != nil {
		return "error: " + err.Error()
	}
	return out.String()
}

// waitForField waits until a field has a value.
func (p *Pair) waitForField(kind, name, path, want string) {
	p.t.Helper()
	p.until(kind+" "+name+" "+path+" to be "+want, func() string {
		if got := p.field(kind, name, path); got != want {
			return "got " + got
		}
		return ""
	})
}

func (p *Pair) nodeIs(condition, want string) {
	p.t.Helper()
	p.waitForField("node", p.Node, `.status.conditions[?(@.type=="`+condition+`")].status`, want)
}

// pod is a manifest with one container that runs a program of the test image.
func (p *Pair) pod(name, more string, args ...string) string {
	quoted := make([]string, len(args))
	for i, a := range args {
		quoted[i] = fmt.Sprintf("%q", a)
	}
	return fmt.Sprintf(`apiVersion: v1
kind: Pod
metadata: {name: %s, namespace: default}
spec:
  nodeName: %s
  terminationGracePeriodSeconds: 1
  containers:
  - name: c
    image: %q
    args: [%s]
    %s
`, name, p.Node, images.TestboxRef, strings.Join(quoted, ", "), strings.ReplaceAll(more, "\n", "\n    "))
}

// log returns the log file of a pod's container on the host.
func (p *Pair) log(name string) string {
	files, err := filepath.Glob(filepath.Join(p.Agent.LogsDir, "default_"+name+"_*", "c", "*.log"))
	if err != nil || len(files) == 0 {
		return fmt.Sprint("no log: ", err)
	}
	text, err := os.ReadFile(files[len(files)-1])
	if err != nil {
		return err.Error()
	}
	return string(text)
}

// leftoverPodDirs returns directories that are left over from the pod.
func (p *Pair) leftoverPodDirs(name string) []string {
	left, _ := filepath.Glob(filepath.Join(p.Agent.LogsDir, "default_"+name+"_*"))
	return left
}

// agentPods waits until the agent reports that the pods are running.
func (p *Pair) agentPods(names ...string) {
	p.t.Helper()
	p.until("the agent's pods", func() string {
		out, err := p.Agent.Command(p.t.Context(), "ps").CombinedOutput()
		if err != nil {
			return string(out)
		}
		for _, name := range names {
			if !regexp.MustCompile(name + ` .*Running`).Match(out) {
				return string(out)
			}
		}
		return ""
	})
}

// berth runs a command of the agent's program.
func (p *Pair) berth(args ...string) error {
	if out, err := p.Agent.Command(p.t.Context(), args...).CombinedOutput(); err != nil {
		return fmt.Errorf("berth %s: %w\n%s", strings.Join(args, " "), err, out)
	}
	return nil
}

func addr(t *testing.T, s string) netip.Addr {
	a, err := netip.ParseAddr(s)
	if err != nil {
		t.Error(err)
	}
	return a
}
