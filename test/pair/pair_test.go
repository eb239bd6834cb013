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
	waitTimeout     = 8 * time.Minute
	deletionTimeout = 8 * time.Minute
)

func TestMain(m *testing.M) {
	hosts.SetDefaultParallelism(2)
	os.Exit(m.Run())
}

// artifacts builds the agent and the image archives once for all tests.
var artifacts = sync.OnceValues(func() (a struct {
	berth, client string
	local         []string
}, err error) {
	ctx := context.Background()
	if a.berth, err = hosts.BuildBerth(ctx, hosts.BuildOptions{Race: true}); err != nil {
		return a, err
	}
	// A command lasts a moment. With the race detector, it takes four times as much CPU time.
	if a.client, err = hosts.BuildBerth(ctx, hosts.BuildOptions{}); err != nil {
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

// Pair is a control server with one joined node.
type Pair struct {
	*servers.Server
	t           *testing.T
	Host        *hosts.Host
	Agent       *hosts.Agent
	Node        string
	serverProxy *serverProxy // nil if the connection cannot be interrupted
}

// forSubtest returns the pair for a subtest.
func (p *Pair) forSubtest(t *testing.T) *Pair {
	out := *p
	out.t = t
	return &out
}

// pairOptions are the options of a Pair.
type pairOptions struct {
	Server         []func(*control.Config)
	Config         map[string]any
	BerthConfig    map[string]any
	Args           []string
	Env            []string      // of the agent's process, in addition to the defaults
	Nodefs         string        // see hosts.AgentOptions
	Disk           string        // see hosts.Options
	Name           string        // node name; default: the host's name
	WithoutCNI     bool          // the host has no network configuration
	Binary         string        // instead of the agent's program
	Handlers       []string      // of the runtime, in addition to the defaults
	Version        hosts.Version // of containerd; default: the newer one
	LAN            *hosts.LAN    // network that the host is connected to
	KeepSockets    bool          // see hosts.AgentOptions
	UseServerProxy bool          // the connection to the server can be interrupted: see Pair.wire
}

// startPair starts a server and a node that joins it with the administrator's kubeconfig.
func startPair(t *testing.T, o pairOptions) *Pair {
	t.Helper()
	p := &Pair{t: t}
	p.Server = servers.Start(t, o.Server...)
	kubeconfig := p.Kubeconfig
	if o.UseServerProxy {
		p.serverProxy = newServerProxy(t, hostOf(t, p.Server.Config.Host))
		kubeconfig = p.serverProxy.kubeconfig(kubeconfig)
	}
	p.startHost(o, "--kubeconfig", kubeconfig)
	p.waitForNodeCondition("Ready", "True")
	return p
}

// startHost creates the node's host and starts its agent.
func (p *Pair) startHost(o pairOptions, join ...string) {
	p.t.Helper()
	built, err := artifacts()
	if err != nil {
		p.t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 15*time.Minute)
	defer cancel()
	if p.Host, err = hosts.Start(ctx, hosts.Options{Version: cmp.Or(o.Version, hosts.Version2), CNI: !o.WithoutCNI,
		Handlers: o.Handlers, Disk: o.Disk, LAN: o.LAN, Images: built.local}); err != nil {
		p.t.Fatal(err)
	}
	p.Node = cmp.Or(o.Name, p.Host.Name)
	p.t.Cleanup(func() {
		if err := p.stop(); err != nil {
			p.t.Error(err)
		}
	})
	config := p.tlsConfiguration()
	maps.Copy(config, o.Config)
	program, client := built.berth, built.client
	if o.Binary != "" {
		program, client = o.Binary, o.Binary
	}
	p.Agent, err = hosts.StartAgent(ctx, hosts.AgentOptions{
		Binary: program, Client: client, Host: p.Host, NodeName: p.Node, Config: config,
		BerthConfig: o.BerthConfig,
		Nodefs:      o.Nodefs, KeepSockets: o.KeepSockets,
		ExtraArgs: append(join, o.Args...),
		Env: append([]string{"GORACE=halt_on_error=1 exitcode=66 atexit_sleep_ms=0"},
			o.Env...),
	})
	if err != nil {
		p.t.Fatal(err)
	}
	if err := p.Agent.WaitReady(ctx); err != nil {
		p.t.Fatal(err)
	}
}

// tlsConfiguration returns the TLS fields of the kubelet configuration. The node's serving certificate
// and its client CA are the server's CA.
func (p *Pair) tlsConfiguration() map[string]any {
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
	tempDir := p.t.TempDir()
	certFile, keyFile := filepath.Join(tempDir, "node.crt"), filepath.Join(tempDir, "node.key")
	if err := errors.Join(err, os.WriteFile(certFile, cert, 0o600), os.WriteFile(keyFile, key, 0o600)); err != nil {
		p.t.Fatal(err)
	}
	return map[string]any{
		"authentication": map[string]any{"x509": map[string]any{"clientCAFile": filepath.Join(dir, "ca.crt")}},
		"tlsCertFile":    certFile, "tlsPrivateKeyFile": keyFile,
	}
}

// stop stops the agent and the host. It returns an error if the agent or its pods leave anything behind.
func (p *Pair) stop() error {
	ctx, cancel := context.WithTimeout(context.Background(), deletionTimeout)
	defer cancel()
	var errs []error
	if p.Agent != nil {
		if p.t.Failed() {
			p.t.Logf("agent log:\n%s", p.Agent.Log())
		}
		if err := p.Agent.Stop(ctx); err != nil {
			errs = append(errs, fmt.Errorf("%w\nagent log:\n%s", err, p.Agent.Log()))
		}
		if strings.Contains(p.Agent.Log(), "DATA RACE") {
			errs = append(errs, fmt.Errorf("data race in the agent:\n%s", p.Agent.Log()))
		}
	}
	return errors.Join(append(errs, p.Host.Stop())...)
}

// waitUntil calls f until it returns "". f returns a description of the current state.
func (p *Pair) waitUntil(what string, f func() string) {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.t.Context(), waitTimeout)
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
// get --ignore-not-found -o jsonpath. It does not run kubectl, because polling with a process for each
// call uses too much CPU time.
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
	p.waitUntil(kind+" "+name+" "+path+" to be "+want, func() string {
		if got := p.field(kind, name, path); got != want {
			return "got " + got
		}
		return ""
	})
}

// waitForNodeCondition waits until a condition of the Node has the given status.
func (p *Pair) waitForNodeCondition(condition, want string) {
	p.t.Helper()
	p.waitForField("node", p.Node, `.status.conditions[?(@.type=="`+condition+`")].status`, want)
}

// pod returns the manifest of a pod with one container, which runs a program of the test image.
func (p *Pair) pod(name, containerFields string, args ...string) string {
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
`, name, p.Node, images.TestboxRef, strings.Join(quoted, ", "), strings.ReplaceAll(containerFields, "\n", "\n    "))
}

// containerLog returns the content of the latest log file of a pod's container on the host.
func (p *Pair) containerLog(name string) string {
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

// waitForReadyLine waits until the container has logged "ready". Before that line, SIGTERM ends a testbox process with
// exit code 2.
func (p *Pair) waitForReadyLine(name string) {
	p.t.Helper()
	p.waitUntil("container "+name+" to be ready", func() string {
		if log := p.containerLog(name); !strings.Contains(log, "ready") {
			return "got " + log
		}
		return ""
	})
}

// remainingPodDirs returns the log directories of the pod that still exist.
func (p *Pair) remainingPodDirs(name string) []string {
	left, _ := filepath.Glob(filepath.Join(p.Agent.LogsDir, "default_"+name+"_*"))
	return left
}

// waitForAgentPods waits until `berth ps` reports the pods as running.
func (p *Pair) waitForAgentPods(names ...string) {
	p.t.Helper()
	p.waitUntil("running pods in berth ps", func() string {
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

// runBerth runs a subcommand of the agent's program.
func (p *Pair) runBerth(args ...string) error {
	if out, err := p.Agent.Command(p.t.Context(), args...).CombinedOutput(); err != nil {
		return fmt.Errorf("berth %s: %w\n%s", strings.Join(args, " "), err, out)
	}
	return nil
}

func parseAddr(t *testing.T, s string) netip.Addr {
	a, err := netip.ParseAddr(s)
	if err != nil {
		t.Error(err)
	}
	return a
}
