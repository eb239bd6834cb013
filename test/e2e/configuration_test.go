package e2e

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	goruntime "runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"berth/node"
	"berth/test/hosts"
)

// servingCert is a self-signed serving certificate in files.
type servingCert struct {
	certFile, keyFile string
	der               []byte
}

func newServingCert(t *testing.T) servingCert {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(7), Subject: pkix.Name{CommonName: "node"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour)}
	dir := t.TempDir()
	s := servingCert{certFile: filepath.Join(dir, "node.crt"), keyFile: filepath.Join(dir, "node.key")}
	var keyDER []byte
	if s.der, err = x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key); err == nil {
		keyDER, err = x509.MarshalECPrivateKey(key)
	}
	err = errors.Join(err,
		os.WriteFile(s.certFile, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.der}), 0o600),
		os.WriteFile(s.keyFile, pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: keyDER}), 0o600))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// dialTLS performs a TLS handshake with the server at an address, without verification.
func dialTLS(t *testing.T, address string, c *tls.Config) (tls.ConnectionState, error) {
	t.Helper()
	c.InsecureSkipVerify = true
	ctx, cancel := waitContext(t)
	defer cancel()
	conn, err := (&tls.Dialer{Config: c}).DialContext(ctx, "tcp", address)
	if err != nil {
		return tls.ConnectionState{}, err
	}
	defer conn.Close()
	return conn.(*tls.Conn).ConnectionState(), nil
}

// waitListening waits until there is a listener at an address.
func waitListening(t *testing.T, address string) {
	t.Helper()
	if err := hosts.WaitFor(t.Context(), address, func() (bool, error) {
		return !isClosed(t, address), nil
	}); err != nil {
		t.Fatal(err)
	}
}

// isClosed reports whether there is no listener at an address.
func isClosed(t *testing.T, address string) bool {
	t.Helper()
	ctx, cancel := waitContext(t)
	defer cancel()
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", address)
	if err == nil {
		_ = conn.Close()
	}
	return err != nil
}

// countingProxy forwards the connections of its socket to another socket, and counts them.
type countingProxy struct {
	path string
	ln   net.Listener
	wg   sync.WaitGroup

	mu       sync.Mutex
	accepted int
	conns    []net.Conn
}

// newCountingProxy starts a proxy for socket. Its own socket is in the same directory.
func newCountingProxy(socket string) (*countingProxy, error) {
	d := &countingProxy{path: filepath.Join(filepath.Dir(socket), "proxy.sock")}
	var err error
	if d.ln, err = new(net.ListenConfig).Listen(context.Background(), "unix", d.path); err != nil {
		return nil, err
	}
	d.wg.Go(func() {
		for {
			client, err := d.ln.Accept()
			if err != nil {
				return
			}
			backend, err := new(net.Dialer).DialContext(context.Background(), "unix", socket)
			if err != nil {
				_ = client.Close()
				continue
			}
			d.mu.Lock()
			d.accepted++
			d.conns = append(d.conns, client, backend)
			d.mu.Unlock()
			for _, pair := range [][2]net.Conn{{client, backend}, {backend, client}} {
				d.wg.Go(func() {
					_, _ = io.Copy(pair[1], pair[0])
					_ = pair[1].Close()
				})
			}
		}
	})
	return d, nil
}

func (d *countingProxy) close() {
	_ = d.ln.Close()
	d.mu.Lock()
	for _, c := range d.conns {
		_ = c.Close()
	}
	d.mu.Unlock()
	d.wg.Wait()
}

func (d *countingProxy) count() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.accepted
}

// configuredNode is a node that sets most fields of the kubelet configuration.
type configuredNode struct {
	*Namespace
	cert             servingCert
	proxy            *countingProxy
	api, healthz     int // ports
	logs, resolvConf string
}

// TestNodeConfiguration sets most fields that have an effect on a node without an API server. It
// checks the effect of each field on the host and in containers.
func TestNodeConfiguration(t *testing.T) {
	t.Parallel()
	for _, v := range hosts.Versions() {
		t.Run(string(v), func(t *testing.T) {
			t.Parallel()
			c := &configuredNode{cert: newServingCert(t), api: freePort(t), healthz: freePort(t),
				resolvConf: filepath.Join(t.TempDir(), "resolv.conf")}
			if err := os.WriteFile(c.resolvConf, []byte("nameserver 192.0.2.53\nsearch node.example\noptions rotate\n"),
				0o644); err != nil {
				t.Fatal(err)
			}
			ca := newClientCA(t)
			t.Cleanup(func() { // runs after the node is stopped
				if c.proxy != nil {
					c.proxy.close()
				}
			})
			c.Namespace = newNode(t, v, nodeOptions{
				CNI: true, Berth: map[string]any{"imageGCPeriod": "1s"},
				ConfigForHost: func(h *hosts.Host) (map[string]any, error) { return c.kubeletConfig(h, ca.file) },
			})
			c.Agent.LogsDir = c.logs
			c.checkAgentProcess()
			c.checkServing()
			c.checkReservedResources()
			c.checkDNS()
			c.checkLimits()
			c.checkImagePulls()
		})
	}
}

func (c *configuredNode) kubeletConfig(h *hosts.Host, clientCA string) (_ map[string]any, err error) {
	if c.proxy, err = newCountingProxy(h.Socket); err != nil {
		return nil, err
	}
	c.logs = filepath.Join(h.Dir, "other-logs")
	swap, err := node.SwapEnabled()
	return map[string]any{
		"address": "127.0.0.3", "port": c.api, "healthzBindAddress": "127.0.0.2", "healthzPort": c.healthz,
		"authentication": map[string]any{"x509": map[string]any{"clientCAFile": clientCA}},
		"tlsCertFile":    c.cert.certFile, "tlsPrivateKeyFile": c.cert.keyFile,
		"tlsMinVersion": "VersionTLS12", "tlsCipherSuites": []string{"TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384"},
		"imageServiceEndpoint": "unix://" + c.proxy.path,
		"cgroupRoot":           h.CgroupRoot, "podPidsLimit": 48, "failSwapOn": !swap, "oomScoreAdj": 321,
		"serializeImagePulls": true, "maxParallelImagePulls": 1, "registryPullQPS": 1, "registryBurst": 1,
		"imageMinimumGCAge": "1s", "imageMaximumGCAge": "15s",
		"kubeReserved":   map[string]string{"cpu": "100m", "memory": "128Mi", "pid": "700"},
		"systemReserved": map[string]string{"cpu": "150m", "memory": "256Mi", "pid": "300"},
		"evictionHard":   map[string]string{"memory.available": "100Mi"},
		"resolvConf":     c.resolvConf, "clusterDNS": []string{"10.96.7.7"}, "clusterDomain": "k8s.example",
		"podLogsDir": c.logs, "allowedUnsafeSysctls": []string{"kernel.msg*"},
		"crashLoopBackOff":       map[string]any{"maxContainerRestartPeriod": "3s"},
		"memoryThrottlingFactor": 0.9, "memoryReservationPolicy": "TieredReservation",
		"memorySwap": map[string]any{"swapBehavior": "LimitedSwap"},
	}, err
}

// checkAgentProcess checks oomScoreAdj and the warnings about fields without an effect.
func (c *configuredNode) checkAgentProcess() {
	if got := strings.TrimSpace(readFile(c.t, fmt.Sprintf("/proc/%d/oom_score_adj", c.Agent.Pid()))); got != "321" {
		c.t.Errorf("oomScoreAdj: got %s, want 321", got)
	}
	v1 := !exists("/sys/fs/cgroup/cgroup.controllers") // test/vm checks their effect on cgroup v2
	const warning = `msg="configuration fields have no effect with cgroup v1" fields="[memoryThrottlingFactor ` +
		`memoryReservationPolicy memorySwap.swapBehavior]"`
	if logged := strings.Contains(c.Agent.Log(), warning); logged != v1 {
		c.t.Errorf("warning about fields without an effect: got %t, want %t", logged, v1)
	}
}

// checkServing checks the ports and the TLS settings.
func (c *configuredNode) checkServing() {
	joinPort := func(host string, port int) string { return net.JoinHostPort(host, strconv.Itoa(port)) }
	api := joinPort("127.0.0.3", c.api)
	waitListening(c.t, api)
	waitListening(c.t, joinPort("127.0.0.2", c.healthz))
	for _, other := range []string{joinPort("127.0.0.1", c.api), joinPort("127.0.0.1", c.healthz)} {
		if !isClosed(c.t, other) {
			c.t.Errorf("unexpected listener at %s", other)
		}
	}
	req, err := http.NewRequestWithContext(c.t.Context(), http.MethodGet,
		"http://"+joinPort("127.0.0.2", c.healthz)+"/healthz", nil)
	if err != nil {
		c.t.Fatal(err)
	}
	req.Close = true
	if resp, err := http.DefaultClient.Do(req); err != nil || resp.StatusCode != http.StatusOK {
		c.t.Errorf("healthz: %v %v", resp, err)
	} else {
		_ = resp.Body.Close()
	}
	tls12 := func(suite uint16) *tls.Config {
		return &tls.Config{MaxVersion: tls.VersionTLS12, CipherSuites: []uint16{suite}}
	}
	if _, err := dialTLS(c.t, api, tls12(tls.TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256)); err == nil ||
		!strings.Contains(err.Error(), "handshake failure") {
		c.t.Errorf("cipher suite that is not configured: %v", err)
	}
	st, err := dialTLS(c.t, api, tls12(tls.TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384))
	if err != nil || st.Version != tls.VersionTLS12 ||
		!st.PeerCertificates[0].Equal(&x509.Certificate{Raw: c.cert.der}) {
		c.t.Errorf("configured cipher suite: %v, version %x", err, st.Version)
	}
	if _, err := dialTLS(c.t, api, &tls.Config{}); err != nil {
		c.t.Errorf("TLS 1.3: %v", err)
	}
}

// checkReservedResources checks the allocatable resources. The downward API reports them for a
// container without limits.
func (c *configuredNode) checkReservedResources() {
	memory, err := node.ReadMemory()
	if err != nil {
		c.t.Fatal(err)
	}
	envVar := func(name, divisor string) string {
		return "{name: " + strings.ToUpper(name) + ", valueFrom: {resourceFieldRef: {resource: limits." + name +
			", divisor: " + divisor + "}}}"
	}
	c.Pod("all", "containers:\n"+box("c", "env: ["+envVar("cpu", "1m")+", "+envVar("memory", "'1'")+"]", "env CPU",
		"env MEMORY", "cgroup", end, "sleep"))
	c.hasLines(c.WaitOutput("all", "c"), strconv.Itoa(goruntime.NumCPU()*1000-250),
		strconv.FormatUint(memory.Total-(128+256+100)<<20, 10))
	p := c.Running("all")
	c.checkCgroup(p, "", "pids", "pids.max", "48") // below cgroupRoot
	_, maxProcesses := node.Processes()
	for _, file := range []string{"/sys/fs/cgroup/pids" + c.Host.CgroupRoot + "/kubepods/pids.max", "/sys/fs/cgroup" +
		c.Host.CgroupRoot + "/kubepods/pids.max"} {
		if !exists(file) { // of the other cgroup version
			continue
		}
		if got := strings.TrimSpace(readFile(c.t, file)); got != strconv.FormatInt(maxProcesses-1000, 10) {
			c.t.Errorf("%s: got %s, want %d less 1000 reserved", file, got, maxProcesses)
		}
	}
	if logs := glob(c.t, filepath.Join(c.logs, c.ns+"_all_"+string(p.UID), "c", "0.log")); len(logs) != 1 {
		c.t.Errorf("container log in podLogsDir: got %v", logs)
	}
}

func (c *configuredNode) checkDNS() {
	c.Pod("names", "containers:\n"+box("c", "", "resolv", end, "sleep"))
	c.Pod("host-names", "dnsPolicy: Default\ncontainers:\n"+box("c", "", "resolv", end, "sleep"))
	c.hasLines(c.WaitOutput("names", "c"), "nameserver 10.96.7.7",
		"search "+c.ns+".svc.k8s.example svc.k8s.example k8s.example node.example")
	c.hasLines(c.WaitOutput("host-names", "c"), "nameserver 192.0.2.53", "search node.example", "options rotate")
	// The name servers of the host change while berth runs, for example by DHCP.
	if err := os.WriteFile(c.resolvConf, []byte("nameserver 192.0.2.54\n"), 0o644); err != nil {
		c.t.Fatal(err)
	}
	c.Pod("new-names", "dnsPolicy: Default\ncontainers:\n"+box("c", "", "resolv", end, "sleep"))
	c.hasLines(c.WaitOutput("new-names", "c"), "nameserver 192.0.2.54")
}

// checkLimits checks podPidsLimit, allowedUnsafeSysctls and the maximum restart back-off.
func (c *configuredNode) checkLimits() {
	c.Pod("forks", "restartPolicy: Never\ncontainers:\n"+
		sh("c", "", "i=0; while [ $i -lt 60 ]; do sleep 1000 & i=$((i+1)); done; echo all of them"))
	if c.Phase("forks", corev1.PodFailed); !strings.Contains(c.log("forks", "c", false), "can't fork") {
		c.t.Errorf("podPidsLimit: %s", c.log("forks", "c", false))
	}
	c.Pod("tuned", "securityContext: {sysctls: [{name: kernel.msgmax, value: '9999'}]}\ncontainers:\n"+
		box("c", "", "cat /proc/sys/kernel/msgmax", end, "sleep"))
	c.hasLines(c.WaitOutput("tuned", "c"), "9999")
	c.Pod("untuned", "securityContext: {sysctls: [{name: net.core.somaxconn, value: '99'}]}\ncontainers:\n"+
		box("c", "", "sleep"))
	if p := c.Phase("untuned", corev1.PodFailed); p.Status.Reason != "SysctlForbidden" {
		c.t.Errorf("allowedUnsafeSysctls: %s", brief(p))
	}
	c.Pod("crashes", "containers:\n"+box("c", "", "exit 3"))
	c.Wait("crashes", "in its longest back-off", func(p *corev1.Pod) bool {
		k := status(p, "c")
		return k.RestartCount >= 2 && k.State.Waiting != nil &&
			strings.Contains(k.State.Waiting.Message, "back-off 3s restarting")
	})
}

// checkImagePulls checks the serialization and the rate limit of image pulls, imageServiceEndpoint
// and imageMaximumGCAge.
func (c *configuredNode) checkImagePulls() {
	var spec strings.Builder
	var repos []string
	var release []func()
	for i := range 3 {
		repo := c.pushImage(c.Open, fmt.Sprint("serial-", i))
		unblock := c.Open.BlockBlobs(repo)
		defer unblock()
		repos, release = append(repos, repo), append(release, unblock)
		spec.WriteString(imageBox(fmt.Sprint("c", i), repo+":1", "", "sleep"))
	}
	start := time.Now()
	c.Pod("serial", "containers:\n"+spec.String())
	pending := map[string]func(){}
	for i, repo := range repos {
		pending[repo] = release[i]
	}
	for len(pending) > 0 {
		var active string
		err := hosts.WaitFor(c.t.Context(), "a pull", func() (bool, error) {
			for repo := range pending {
				if c.Open.Counts(repo).Blocked > 0 {
					active = repo
					return true, nil
				}
			}
			return false, nil
		})
		if err != nil {
			c.t.Fatal(err)
		}
		if len(pending) > 1 {
			c.waitPullState("serial", active+":1, for 1 pods", strconv.Itoa(len(pending)-2)+" pulls before it")
		}
		for repo := range pending {
			if n := c.Open.Counts(repo); repo != active && n.Manifests > 0 {
				c.t.Errorf("%s is pulled in parallel with %s: %+v", repo, active, n)
			}
		}
		pending[active]()
		delete(pending, active)
	}
	c.Running("serial")
	if took := time.Since(start); took < 2*time.Second {
		c.t.Errorf("three pulls with registryPullQPS 1 took %s, want at least 2s", took)
	}
	if c.proxy.count() == 0 {
		c.t.Error("no connection to imageServiceEndpoint")
	}
	c.contains("berth check", c.Berth("check"), "image service", "unix://"+c.proxy.path)

	c.Pod("brief", "restartPolicy: Never\ncontainers:\n"+imageBox("c", c.pushImage(c.Open, "brief")+":1", "", "exit 0"))
	c.Phase("brief", corev1.PodSucceeded)
	c.Remove("brief")
	c.WaitDeleted("brief")
	var collected float64
	err := hosts.WaitFor(c.t.Context(), "the unused image to be removed", func() (bool, error) {
		collected = c.metric(`kubelet_image_garbage_collected_total{reason="age"}`)
		return collected >= 1, nil
	})
	names := strings.Join(c.listImages(), " ")
	if err != nil || collected != 1 || strings.Contains(names, "brief") || strings.Count(names, "serial-") != 3 {
		c.t.Errorf("%v: %v images collected, images: %s", err, collected, names)
	}
}

// waitPullState waits until the output of berth why contains all parts.
func (s *Namespace) waitPullState(pod string, parts ...string) {
	s.t.Helper()
	var out string
	err := hosts.WaitFor(s.t.Context(), fmt.Sprint("pull state: ", parts), func() (bool, error) {
		out, _ = s.Try("why", "-n", s.ns, pod)
		return !slices.ContainsFunc(parts, func(text string) bool { return !strings.Contains(out, text) }), nil
	})
	if err != nil {
		s.t.Fatalf("%v\n%s", err, out)
	}
}

// TestSoftEvictionThreshold checks that a soft threshold evicts a pod after its grace period, and that
// evictionMaxPodGracePeriod limits the termination. It also covers second values of fields of
// TestNodeConfiguration.
func TestSoftEvictionThreshold(t *testing.T) {
	t.Parallel()
	for _, v := range hosts.Versions() {
		t.Run(string(v), func(t *testing.T) {
			t.Parallel()
			ca, port := newClientCA(t), freePort(t)
			s := newNode(t, v, nodeOptions{CNI: true, Nodefs: "size=64m", Config: map[string]any{
				"evictionHard":                     map[string]string{"memory.available": "100Mi"},
				"evictionSoft":                     map[string]string{"nodefs.available": "50%"},
				"evictionSoftGracePeriod":          map[string]string{"nodefs.available": "3s"},
				"evictionMinimumReclaim":           map[string]string{"nodefs.available": "1Mi"},
				"evictionMaxPodGracePeriod":        2,
				"evictionPressureTransitionPeriod": "10s",
				"maxParallelImagePulls":            2,
				"address":                          "127.0.0.1", "port": port, "tlsMinVersion": "VersionTLS13",
				"authentication": map[string]any{"x509": map[string]any{"clientCAFile": ca.file}},
			}})
			address := net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
			waitListening(t, address)
			if _, err := dialTLS(t, address, &tls.Config{MaxVersion: tls.VersionTLS12}); err == nil ||
				!strings.Contains(err.Error(), "protocol version") {
				t.Errorf("TLS 1.2: %v", err)
			}
			if _, err := dialTLS(t, address, &tls.Config{}); err != nil {
				t.Errorf("TLS 1.3: %v", err)
			}
			s.checkParallelPulls()

			s.Pod("hog", "terminationGracePeriodSeconds: 3600\nvolumes: [{name: data, emptyDir: {}}]\ncontainers:\n"+
				box("fills", "volumeMounts: [{name: data, mountPath: /data}]", "ignore-term", "fill /data/x 40", end,
					"sleep"))
			s.WaitOutput("hog", "fills")
			p := s.Phase("hog", corev1.PodFailed) // long before the pod's own grace period ends
			if p.Status.Reason != "Evicted" ||
				!strings.Contains(p.Status.Message,
					"The node was low on resource: ephemeral-storage. Threshold quantity: ") {
				t.Errorf("%s: %s", p.Status.Reason, p.Status.Message)
			}
			s.contains("the log", s.WaitLog("hog", "fills", "TERM"), "TERM")
			s.waitPressure("DiskPressure", false)
		})
	}
}

// checkParallelPulls checks that only two of three images are pulled in parallel.
func (s *Namespace) checkParallelPulls() {
	s.t.Helper()
	var spec strings.Builder
	var repos []string
	for i := range 3 {
		repo := s.pushImage(s.Open, fmt.Sprint("two-", i))
		defer s.Open.BlockBlobs(repo)()
		repos = append(repos, repo)
		spec.WriteString(imageBox(fmt.Sprint("c", i), repo+":1", "", "sleep"))
	}
	s.Pod("three", "containers:\n"+spec.String())
	activePulls := func() (n int) {
		for _, r := range repos {
			if s.Open.Counts(r).Blocked > 0 {
				n++
			}
		}
		return n
	}
	if err := hosts.WaitFor(s.t.Context(), "two parallel pulls", func() (bool, error) {
		return activePulls() == 2, nil
	}); err != nil {
		s.t.Fatal(err)
	}
	s.waitPullState("three", "0 pulls before it")
	if n := activePulls(); n != 2 {
		s.t.Errorf("got %d active pulls, want 2", n)
	}
	s.Remove("three")
	s.WaitDeleted("three")
}

// TestUnsupportedHostIsRejected checks that an agent does not start when the host does not meet a
// setting or a setting is invalid, and that the log names the field.
func TestUnsupportedHostIsRejected(t *testing.T) {
	forEachContainerd(t, func(t *testing.T, s *Namespace) {
		built, err := artifacts()
		if err != nil {
			t.Fatal(err)
		}
		// A wrapper that shows the program a host with swap.
		dir := t.TempDir()
		swaps, wrapped := filepath.Join(dir, "swaps"), filepath.Join(dir, "berth")
		err = errors.Join(
			os.WriteFile(swaps, []byte("Filename\tType\tSize\tUsed\tPriority\n/dev/sdz9 partition 1048572 0 -2\n"),
				0o644),
			hosts.WriteProgram(wrapped, "#!/bin/sh\nexec unshare -m sh -c 'mount --bind "+swaps+
				" /proc/swaps && exec \"$@\"' sh "+built.berth+" \"$@\"\n"))
		if err != nil {
			t.Fatal(err)
		}
		checkRejected := func(field, binary string, config map[string]any) {
			t.Helper()
			ctx, cancel := waitContext(t)
			defer cancel()
			a, err := hosts.StartAgent(ctx, hosts.AgentOptions{Binary: binary, Host: s.Host, Name: "r-" +
				strings.ToLower(field), Config: config})
			if err != nil {
				t.Fatal(err)
			}
			if err := a.Wait(ctx); err == nil || ctx.Err() != nil || !strings.Contains(a.Log(), field) {
				t.Errorf("%s: %v: %s", field, err, a.Log())
			}
		}
		checkRejected("failSwapOn", wrapped, map[string]any{"failSwapOn": true})
		if !exists("/sys/fs/cgroup/cgroup.controllers") {
			checkRejected("failCgroupV1", built.berth, map[string]any{"failCgroupV1": true})
		}
		checkRejected("tlsCipherSuites[0]", built.berth,
			map[string]any{"tlsCipherSuites": []string{"TLS_RSA_WITH_RC4_128_SHA"}})
		checkRejected("imageMaximumGCAge", built.berth, map[string]any{"imageMinimumGCAge": "2h",
			"imageMaximumGCAge": "1h"})
		checkRejected("evictionSoft[nodefs.available]", built.berth,
			map[string]any{"evictionSoft": map[string]string{"nodefs.available": "50%"}})
		checkRejected("staticPodURL", built.berth, map[string]any{"staticPodURL": "http://127.0.0.1/"})
	})
}
