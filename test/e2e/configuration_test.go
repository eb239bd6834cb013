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

// serving is a certificate as an administrator brings it.
type serving struct {
	certFile, keyFile string
	der               []byte
}

func newServing(t *testing.T) serving {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	of := &x509.Certificate{SerialNumber: big.NewInt(7), Subject: pkix.Name{CommonName: "brought"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour)}
	dir := t.TempDir()
	s := serving{certFile: filepath.Join(dir, "node.crt"), keyFile: filepath.Join(dir, "node.key")}
	var packed []byte
	if s.der, err = x509.CreateCertificate(rand.Reader, of, of, &key.PublicKey, key); err == nil {
		packed, err = x509.MarshalECPrivateKey(key)
	}
	err = errors.Join(err,
		os.WriteFile(s.certFile, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.der}), 0o600),
		os.WriteFile(s.keyFile, pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: packed}), 0o600))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// greet shakes hands with who serves TLS at an address.
func greet(t *testing.T, address string, c *tls.Config) (tls.ConnectionState, error) {
	t.Helper()
	c.InsecureSkipVerify = true
	ctx, cancel := withBound(t)
	defer cancel()
	conn, err := (&tls.Dialer{Config: c}).DialContext(ctx, "tcp", address)
	if err != nil {
		return tls.ConnectionState{}, err
	}
	defer conn.Close()
	return conn.(*tls.Conn).ConnectionState(), nil
}

// opened waits until there is a listener at an address.
func opened(t *testing.T, address string) {
	t.Helper()
	if err := hosts.WaitFor(t.Context(), address, func() (bool, error) { return !closed(t, address), nil }); err != nil {
		t.Fatal(err)
	}
}

// closed reports whether there is no listener at an address.
func closed(t *testing.T, address string) bool {
	t.Helper()
	ctx, cancel := withBound(t)
	defer cancel()
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", address)
	if err == nil {
		_ = conn.Close()
	}
	return err != nil
}

// doorman forwards connections of its socket to another one, and counts.
type doorman struct {
	path string
	ln   net.Listener
	all  sync.WaitGroup

	mu    sync.Mutex
	came  int
	conns []net.Conn
}

// newDoorman listens beside the socket that it leads to.
func newDoorman(socket string) (*doorman, error) {
	d := &doorman{path: filepath.Join(filepath.Dir(socket), "door.sock")}
	var err error
	if d.ln, err = new(net.ListenConfig).Listen(context.Background(), "unix", d.path); err != nil {
		return nil, err
	}
	d.all.Go(func() {
		for {
			from, err := d.ln.Accept()
			if err != nil {
				return
			}
			to, err := new(net.Dialer).DialContext(context.Background(), "unix", socket)
			if err != nil {
				_ = from.Close()
				continue
			}
			d.mu.Lock()
			d.came++
			d.conns = append(d.conns, from, to)
			d.mu.Unlock()
			for _, way := range [][2]net.Conn{{from, to}, {to, from}} {
				d.all.Go(func() {
					_, _ = io.Copy(way[1], way[0])
					_ = way[1].Close()
				})
			}
		}
	})
	return d, nil
}

func (d *doorman) close() {
	_ = d.ln.Close()
	d.mu.Lock()
	for _, c := range d.conns {
		_ = c.Close()
	}
	d.mu.Unlock()
	d.all.Wait()
}

func (d *doorman) count() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.came
}

// configured is a node with much in its configuration.
type configured struct {
	*Space
	cert           serving
	door           *doorman
	api, healthz   int // ports
	logs, resolved string
}

// TestNodeConfiguration gives an agent most fields that a node without
// a server has an effect of, and looks for each from outside and from inside.
func TestNodeConfiguration(t *testing.T) {
	t.Parallel()
	for _, v := range hosts.Versions() {
		t.Run(string(v), func(t *testing.T) {
			t.Parallel()
			c := &configured{cert: newServing(t), api: freePort(t), healthz: freePort(t), resolved: filepath.Join(t.TempDir(), "resolv.conf")}
			if err := os.WriteFile(c.resolved, []byte("nameserver 192.0.2.53\nsearch node.example\noptions rotate\n"), 0o644); err != nil {
				t.Fatal(err)
			}
			who := newClients(t)
			t.Cleanup(func() { // after the node
				if c.door != nil {
					c.door.close()
				}
			})
			c.Space = own(t, v, nodeOptions{CNI: true, Berth: map[string]any{"imageGCPeriod": "1s"}, More: func(h *hosts.Host) (map[string]any, error) {
				return c.config(h, who.file)
			}})
			c.Agent.LogsDir = c.logs
			c.agent()
			c.serves()
			c.reserves()
			c.network()
			c.bounds()
			c.pulls()
		})
	}
}

func (c *configured) config(h *hosts.Host, clientCA string) (_ map[string]any, err error) {
	if c.door, err = newDoorman(h.Socket); err != nil {
		return nil, err
	}
	c.logs = filepath.Join(h.Dir, "other-logs")
	swap, err := node.SwapEnabled()
	return map[string]any{
		"address": "127.0.0.3", "port": c.api, "healthzBindAddress": "127.0.0.2", "healthzPort": c.healthz,
		"authentication": map[string]any{"x509": map[string]any{"clientCAFile": clientCA}},
		"tlsCertFile":    c.cert.certFile, "tlsPrivateKeyFile": c.cert.keyFile,
		"tlsMinVersion": "VersionTLS12", "tlsCipherSuites": []string{"TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384"},
		"imageServiceEndpoint": "unix://" + c.door.path,
		"cgroupRoot":           h.CgroupRoot, "podPidsLimit": 48, "failSwapOn": !swap, "oomScoreAdj": 321,
		"serializeImagePulls": true, "maxParallelImagePulls": 1, "registryPullQPS": 1, "registryBurst": 1,
		"imageMinimumGCAge": "1s", "imageMaximumGCAge": "15s",
		"kubeReserved": map[string]string{"cpu": "100m", "memory": "128Mi", "pid": "700"}, "systemReserved": map[string]string{"cpu": "150m", "memory": "256Mi", "pid": "300"},
		"evictionHard": map[string]string{"memory.available": "100Mi"},
		"resolvConf":   c.resolved, "clusterDNS": []string{"10.96.7.7"}, "clusterDomain": "k8s.example",
		"podLogsDir": c.logs, "allowedUnsafeSysctls": []string{"kernel.msg*"},
		"crashLoopBackOff":       map[string]any{"maxContainerRestartPeriod": "3s"},
		"memoryThrottlingFactor": 0.9, "memoryReservationPolicy": "TieredReservation", "memorySwap": map[string]any{"swapBehavior": "LimitedSwap"},
	}, err
}

// agent looks at the process, and at what it says of fields without a meaning here.
func (c *configured) agent() {
	if got := strings.TrimSpace(readFile(c.t, fmt.Sprintf("/proc/%d/oom_score_adj", c.Agent.Pid()))); got != "321" {
		c.t.Errorf("oomScoreAdj: it is %s", got)
	}
	v1 := !exists("/sys/fs/cgroup/cgroup.controllers") // on v2 test/vm looks for their effect
	for _, field := range []string{"memoryThrottlingFactor", "memoryReservationPolicy", "memorySwap.swapBehavior"} {
		if said := strings.Contains(c.Agent.Log(), `has no effect with cgroup v1" field=`+field); said != v1 {
			c.t.Errorf("on cgroup v1 (%t) it is said of %s that it has no effect: %t", v1, field, said)
		}
	}
}

// serves looks at the ports and at how TLS is spoken.
func (c *configured) serves() {
	at := func(host string, port int) string { return net.JoinHostPort(host, strconv.Itoa(port)) }
	api := at("127.0.0.3", c.api)
	opened(c.t, api)
	opened(c.t, at("127.0.0.2", c.healthz))
	for _, other := range []string{at("127.0.0.1", c.api), at("127.0.0.1", c.healthz)} {
		if !closed(c.t, other) {
			c.t.Errorf("somebody listens at %s", other)
		}
	}
	req, err := http.NewRequestWithContext(c.t.Context(), http.MethodGet, "http://"+at("127.0.0.2", c.healthz)+"/healthz", nil)
	if err != nil {
		c.t.Fatal(err)
	}
	req.Close = true
	if resp, err := http.DefaultClient.Do(req); err != nil || resp.StatusCode != http.StatusOK {
		c.t.Errorf("healthz: %v %v", resp, err)
	} else {
		_ = resp.Body.Close()
	}
	old := func(suite uint16) *tls.Config {
		return &tls.Config{MaxVersion: tls.VersionTLS12, CipherSuites: []uint16{suite}}
	}
	if _, err := greet(c.t, api, old(tls.TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256)); err == nil || !strings.Contains(err.Error(), "handshake failure") {
		c.t.Errorf("another cipher suite: %v", err)
	}
	st, err := greet(c.t, api, old(tls.TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384))
	if err != nil || st.Version != tls.VersionTLS12 || !st.PeerCertificates[0].Equal(&x509.Certificate{Raw: c.cert.der}) {
		c.t.Errorf("the cipher suite that is named: %v, version %x", err, st.Version)
	}
	if _, err := greet(c.t, api, &tls.Config{}); err != nil {
		c.t.Errorf("TLS 1.3: %v", err)
	}
}

// reserves looks at what of the node pods may use: a container without limits is
// reported all of that.
func (c *configured) reserves() {
	whole, err := node.ReadMemory()
	if err != nil {
		c.t.Fatal(err)
	}
	of := func(name, divisor string) string {
		return "{name: " + strings.ToUpper(name) + ", valueFrom: {resourceFieldRef: {resource: limits." + name + ", divisor: " + divisor + "}}}"
	}
	c.Pod("all", "containers:\n"+box("c", "env: ["+of("cpu", "1m")+", "+of("memory", "'1'")+"]", "env CPU", "env MEMORY", "cgroup", end, "sleep"))
	c.hasLines(c.Report("all", "c"), strconv.Itoa(goruntime.NumCPU()*1000-250), strconv.FormatUint(whole.Total-(128+256+100)<<20, 10))
	p := c.Running("all")
	c.cgroupIs(p, "", "pids", "pids.max", "48") // below cgroupRoot
	_, most := node.Processes()
	for _, file := range []string{"/sys/fs/cgroup/pids" + c.Host.CgroupRoot + "/kubepods/pids.max", "/sys/fs/cgroup" + c.Host.CgroupRoot + "/kubepods/pids.max"} {
		if !exists(file) { // the other version of cgroups has it
			continue
		}
		if got := strings.TrimSpace(readFile(c.t, file)); got != strconv.FormatInt(most-1000, 10) {
			c.t.Errorf("%s is %s, and of %d processes 1000 are reserved", file, got, most)
		}
	}
	if logs := glob(c.t, filepath.Join(c.logs, c.ns+"_all_"+string(p.UID), "c", "0.log")); len(logs) != 1 {
		c.t.Errorf("the log is not in podLogsDir: %v", logs)
	}
}

func (c *configured) network() {
	c.Pod("names", "containers:\n"+box("c", "", "resolv", end, "sleep"))
	c.Pod("host-names", "dnsPolicy: Default\ncontainers:\n"+box("c", "", "resolv", end, "sleep"))
	c.hasLines(c.Report("names", "c"), "nameserver 10.96.7.7", "search "+c.ns+".svc.k8s.example svc.k8s.example k8s.example node.example")
	c.hasLines(c.Report("host-names", "c"), "nameserver 192.0.2.53", "search node.example", "options rotate")
	// The host gets other name servers while berth runs, as by DHCP.
	if err := os.WriteFile(c.resolved, []byte("nameserver 192.0.2.54\n"), 0o644); err != nil {
		c.t.Fatal(err)
	}
	c.Pod("new-names", "dnsPolicy: Default\ncontainers:\n"+box("c", "", "resolv", end, "sleep"))
	c.hasLines(c.Report("new-names", "c"), "nameserver 192.0.2.54")
}

// bounds looks at what pods may not do, or only so often.
func (c *configured) bounds() {
	c.Pod("forks", "restartPolicy: Never\ncontainers:\n"+sh("c", "", "i=0; while [ $i -lt 60 ]; do sleep 1000 & i=$((i+1)); done; echo all of them"))
	if c.Phase("forks", corev1.PodFailed); !strings.Contains(c.log("forks", "c", false), "can't fork") {
		c.t.Errorf("podPidsLimit: %s", c.log("forks", "c", false))
	}
	c.Pod("tuned", "securityContext: {sysctls: [{name: kernel.msgmax, value: '9999'}]}\ncontainers:\n"+box("c", "", "cat /proc/sys/kernel/msgmax", end, "sleep"))
	c.hasLines(c.Report("tuned", "c"), "9999")
	c.Pod("untuned", "securityContext: {sysctls: [{name: net.core.somaxconn, value: '99'}]}\ncontainers:\n"+box("c", "", "sleep"))
	if p := c.Phase("untuned", corev1.PodFailed); p.Status.Reason != "SysctlForbidden" {
		c.t.Errorf("allowedUnsafeSysctls: %s", brief(p))
	}
	c.Pod("crashes", "containers:\n"+box("c", "", "exit 3"))
	c.Wait("crashes", "in its longest back-off", func(p *corev1.Pod) bool {
		k := status(p, "c")
		return k.RestartCount >= 2 && k.State.Waiting != nil && strings.Contains(k.State.Waiting.Message, "back-off 3s restarting")
	})
}

// pulls looks at how images come and, when they have not been used for too long, go.
func (c *configured) pulls() {
	var spec strings.Builder
	var repos []string
	var release []func()
	for i := range 3 {
		repo := c.cold(c.Open, fmt.Sprint("serial-", i))
		let := c.Open.BlockBlobs(repo)
		defer let()
		repos, release = append(repos, repo), append(release, let)
		spec.WriteString(imageBox(fmt.Sprint("c", i), repo+":1", "", "sleep"))
	}
	asked := time.Now()
	c.Pod("serial", "containers:\n"+spec.String())
	left := map[string]func(){}
	for i, repo := range repos {
		left[repo] = release[i]
	}
	for len(left) > 0 {
		var one string
		err := hosts.WaitFor(c.t.Context(), "a pull", func() (bool, error) {
			for repo := range left {
				if c.Open.Counts(repo).Blocked > 0 {
					one = repo
					return true, nil
				}
			}
			return false, nil
		})
		if err != nil {
			c.t.Fatal(err)
		}
		if len(left) > 1 {
			c.pulling("serial", one+":1, for 1 pods", strconv.Itoa(len(left)-2)+" pulls before it")
		}
		for repo := range left {
			if n := c.Open.Counts(repo); repo != one && n.Manifests > 0 {
				c.t.Errorf("%s is pulled beside %s: %+v", repo, one, n)
			}
		}
		left[one]()
		delete(left, one)
	}
	c.Running("serial")
	if took := time.Since(asked); took < 2*time.Second {
		c.t.Errorf("three pulls of which one a second may begin took %s", took)
	}
	if c.door.count() == 0 {
		c.t.Error("nobody came to imageServiceEndpoint")
	}
	c.contains("berth check", c.Berth("check"), "image service", "unix://"+c.door.path)

	c.Pod("brief", "restartPolicy: Never\ncontainers:\n"+imageBox("c", c.cold(c.Open, "brief")+":1", "", "exit 0"))
	c.Phase("brief", corev1.PodSucceeded)
	c.Remove("brief")
	c.Gone("brief")
	var collected float64
	err := hosts.WaitFor(c.t.Context(), "the unused image to go", func() (bool, error) {
		collected = c.metric(`kubelet_image_garbage_collected_total{reason="age"}`)
		return collected >= 1, nil
	})
	here := strings.Join(c.imagesHere(), " ")
	if err != nil || collected != 1 || strings.Contains(here, "brief") || strings.Count(here, "serial-") != 3 {
		c.t.Errorf("%v: %v images are collected, and there are %s", err, collected, here)
	}
}

// pulling waits until berth why shows pulls that stand so.
func (s *Space) pulling(pod string, standing ...string) {
	s.t.Helper()
	var out string
	err := hosts.WaitFor(s.t.Context(), fmt.Sprint("pulls that stand so: ", standing), func() (bool, error) {
		out, _ = s.Try("why", "-n", s.ns, pod)
		return !slices.ContainsFunc(standing, func(text string) bool { return !strings.Contains(out, text) }), nil
	})
	if err != nil {
		s.t.Fatalf("%v\n%s", err, out)
	}
}

// TestSoftEvictionThreshold: a pod goes for it after its grace, and has no longer to end
// than such pods may have. Beside it, fields that have two values worth a look.
func TestSoftEvictionThreshold(t *testing.T) {
	t.Parallel()
	for _, v := range hosts.Versions() {
		t.Run(string(v), func(t *testing.T) {
			t.Parallel()
			who, port := newClients(t), freePort(t)
			s := own(t, v, nodeOptions{CNI: true, Nodefs: "size=64m", Config: map[string]any{
				"evictionHard":                     map[string]string{"memory.available": "100Mi"},
				"evictionSoft":                     map[string]string{"nodefs.available": "50%"},
				"evictionSoftGracePeriod":          map[string]string{"nodefs.available": "3s"},
				"evictionMinimumReclaim":           map[string]string{"nodefs.available": "1Mi"},
				"evictionMaxPodGracePeriod":        2,
				"evictionPressureTransitionPeriod": "10s",
				"maxParallelImagePulls":            2,
				"address":                          "127.0.0.1", "port": port, "tlsMinVersion": "VersionTLS13",
				"authentication": map[string]any{"x509": map[string]any{"clientCAFile": who.file}},
			}})
			at := net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
			opened(t, at)
			if _, err := greet(t, at, &tls.Config{MaxVersion: tls.VersionTLS12}); err == nil || !strings.Contains(err.Error(), "protocol version") {
				t.Errorf("TLS 1.2: %v", err)
			}
			if _, err := greet(t, at, &tls.Config{}); err != nil {
				t.Errorf("TLS 1.3: %v", err)
			}
			s.twoAtOnce()

			s.Pod("hog", "terminationGracePeriodSeconds: 3600\nvolumes: [{name: data, emptyDir: {}}]\ncontainers:\n"+
				box("fills", "volumeMounts: [{name: data, mountPath: /data}]", "ignore-term", "fill /data/x 40", end, "sleep"))
			s.Report("hog", "fills")
			p := s.Phase("hog", corev1.PodFailed) // an hour before its own grace ends
			if p.Status.Reason != "Evicted" || !strings.Contains(p.Status.Message, "The node was low on resource: ephemeral-storage. Threshold quantity: ") {
				t.Errorf("%s: %s", p.Status.Reason, p.Status.Message)
			}
			s.contains("the log", s.Said("hog", "fills", "TERM"), "TERM")
			s.pressed("DiskPressure", false)
		})
	}
}

// twoAtOnce has three images pulled where two may be at once.
func (s *Space) twoAtOnce() {
	s.t.Helper()
	var spec strings.Builder
	var repos []string
	for i := range 3 {
		repo := s.cold(s.Open, fmt.Sprint("two-", i))
		defer s.Open.BlockBlobs(repo)()
		repos = append(repos, repo)
		spec.WriteString(imageBox(fmt.Sprint("c", i), repo+":1", "", "sleep"))
	}
	s.Pod("three", "containers:\n"+spec.String())
	begun := func() (n int) {
		for _, r := range repos {
			if s.Open.Counts(r).Blocked > 0 {
				n++
			}
		}
		return n
	}
	if err := hosts.WaitFor(s.t.Context(), "two pulls at once", func() (bool, error) { return begun() == 2, nil }); err != nil {
		s.t.Fatal(err)
	}
	s.pulling("three", "0 pulls before it")
	if n := begun(); n != 2 {
		s.t.Errorf("%d pulls are under way", n)
	}
	s.Remove("three")
	s.Gone("three")
}

// TestUnsupportedHostIsRejected: an agent with that setting does not start, and names the
// field.
func TestUnsupportedHostIsRejected(t *testing.T) {
	both(t, func(t *testing.T, s *Space) {
		made, err := artifacts()
		if err != nil {
			t.Fatal(err)
		}
		// The same program where the kernel reports swap.
		dir := t.TempDir()
		swaps, wrapped := filepath.Join(dir, "swaps"), filepath.Join(dir, "berth")
		err = errors.Join(
			os.WriteFile(swaps, []byte("Filename\tType\tSize\tUsed\tPriority\n/dev/sdz9 partition 1048572 0 -2\n"), 0o644),
			hosts.WriteProgram(wrapped, "#!/bin/sh\nexec unshare -m sh -c 'mount --bind "+swaps+" /proc/swaps && exec \"$@\"' sh "+made.berth+" \"$@\"\n"))
		if err != nil {
			t.Fatal(err)
		}
		refused := func(field, binary string, config map[string]any) {
			t.Helper()
			ctx, cancel := withBound(t)
			defer cancel()
			a, err := hosts.StartAgent(ctx, hosts.AgentOptions{Binary: binary, Host: s.Host, Name: "r-" + strings.ToLower(field), Config: config})
			if err != nil {
				t.Fatal(err)
			}
			if err := a.Wait(ctx); err == nil || ctx.Err() != nil || !strings.Contains(a.Log(), field) {
				t.Errorf("%s: %v: %s", field, err, a.Log())
			}
		}
		refused("failSwapOn", wrapped, map[string]any{"failSwapOn": true})
		if !exists("/sys/fs/cgroup/cgroup.controllers") {
			refused("failCgroupV1", made.berth, map[string]any{"failCgroupV1": true})
		}
		refused("tlsCipherSuites[0]", made.berth, map[string]any{"tlsCipherSuites": []string{"TLS_RSA_WITH_RC4_128_SHA"}})
		refused("imageMaximumGCAge", made.berth, map[string]any{"imageMinimumGCAge": "2h", "imageMaximumGCAge": "1h"})
		refused("evictionSoft[nodefs.available]", made.berth, map[string]any{"evictionSoft": map[string]string{"nodefs.available": "50%"}})
		refused("staticPodURL", made.berth, map[string]any{"staticPodURL": "http://127.0.0.1/"})
	})
}
