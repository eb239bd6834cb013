package e2e

import (
	"bufio"
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/portforward"
	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/client-go/transport/spdy"
	clientexec "k8s.io/client-go/util/exec"
	stats "k8s.io/kubelet/pkg/apis/stats/v1alpha1"

	"berth/test/hosts"
)

// clientCA signs client certificates.
type clientCA struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	file string
}

func newClientCA(t *testing.T) *clientCA {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	c := &clientCA{key: key, file: filepath.Join(t.TempDir(), "ca.crt"), cert: &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "clients"}, NotBefore: time.Now().Add(-time.Hour),
		NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}}
	der, err := x509.CreateCertificate(rand.Reader, c.cert, c.cert, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(c.file, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600); err != nil {
		t.Fatal(err)
	}
	return c
}

// config returns a client configuration for a user in a group, for a local port.
func (c *clientCA) config(t *testing.T, port int, name, group string) *rest.Config {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: name, Organization: []string{group}},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}, c.cert, &key.PublicKey, c.key)
	if err != nil {
		t.Fatal(err)
	}
	keyDER, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return &rest.Config{Host: fmt.Sprintf("https://127.0.0.1:%d", port), TLSClientConfig: rest.TLSClientConfig{
		Insecure: true,
		CertData: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		KeyData:  pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: keyDER}),
	}}
}

func freePort(t *testing.T) int {
	t.Helper()
	port, err := hosts.FreePort()
	if err != nil {
		t.Fatal(err)
	}
	return port
}

// kubeletClient is a client of a node's kubelet API with the group system:masters.
type kubeletClient struct {
	*Namespace
	config *rest.Config
	http   *http.Client
}

func (a *kubeletClient) get(path string) (int, string) {
	a.t.Helper()
	req, err := http.NewRequestWithContext(a.t.Context(), http.MethodGet, a.config.Host+path, nil)
	if err != nil {
		a.t.Fatal(err)
	}
	resp, err := a.http.Do(req)
	if err != nil {
		a.t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		a.t.Fatal(err)
	}
	return resp.StatusCode, string(body)
}

func (a *kubeletClient) url(path string) *url.URL {
	u, err := url.Parse(a.config.Host + path)
	if err != nil {
		a.t.Fatal(err)
	}
	return u
}

// executor returns a client-go executor for SPDY or WebSocket.
func (a *kubeletClient) executor(ws bool, path string) remotecommand.Executor {
	a.t.Helper()
	e, err := remotecommand.NewSPDYExecutor(a.config, http.MethodPost, a.url(path))
	if ws {
		e, err = remotecommand.NewWebSocketExecutor(a.config, http.MethodGet, a.url(path).String())
	}
	if err != nil {
		a.t.Fatal(err)
	}
	return e
}

func TestKubeletAPI(t *testing.T) {
	t.Parallel()
	for _, v := range hosts.Versions() {
		t.Run(string(v), func(t *testing.T) {
			t.Parallel()
			ca, port := newClientCA(t), freePort(t)
			s := newNode(t, v, nodeOptions{CNI: true, Config: map[string]any{
				"address": "127.0.0.1", "port": port, "maxPods": 42, "enableSystemLogQuery": true,
				"authentication": map[string]any{"x509": map[string]any{"clientCAFile": ca.file}},
			}})
			a := &kubeletClient{Namespace: s, config: ca.config(t, port, "admin", "system:masters")}
			var err error
			if a.http, err = rest.HTTPClientFor(a.config); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(a.http.CloseIdleConnections)
			a.Pod("echoes", "volumes: [{name: data, emptyDir: {}}]\ncontainers:\n"+
				sh("c", "stdin: true, volumeMounts: [{name: data, mountPath: /data}]",
					`head -c 1048576 /dev/zero >/data/f; echo start; `+
						`while read x; do echo "got $x"; echo "err $x" >&2; done; sleep 1000`)+
				sh("screen", "stdin: true, tty: true", `while read x; do stty size; done`)+
				"- {name: web, image: 'nginx:1.14.2', readinessProbe: {httpGet: {port: 80}, periodSeconds: 1}, "+
				"resources: {limits: {cpu: 500m, memory: 64Mi}}}\n")
			a.Pod("again", "containers:\n"+sh("c", "", `echo "run once"; exit 3`))
			a.Running("echoes")
			a.checkAuth(ca, port)
			a.checkExec()
			a.checkAttach()
			a.checkLogs()
			a.checkPortForward()
			a.checkStatsAndMetrics()
			a.checkMetricsReference()
			a.checkEndpoints()
			a.checkDebugEndpoints()
			a.checkRun()
		})
	}
}

func (a *kubeletClient) checkAuth(ca *clientCA, port int) {
	forbidden := ca.config(a.t, port, "jane", "dev")
	for name, config := range map[string]*rest.Config{"Forbidden": forbidden,
		"Unauthorized": {Host: a.config.Host, TLSClientConfig: rest.TLSClientConfig{Insecure: true}}} {
		client, err := rest.HTTPClientFor(config)
		if err != nil {
			a.t.Fatal(err)
		}
		code, body := (&kubeletClient{Namespace: a.Namespace, config: config, http: client}).get("/pods")
		if code != http.StatusForbidden && code != http.StatusUnauthorized || !strings.HasPrefix(body, name) {
			a.t.Errorf("%s: %d %s", name, code, body)
		}
		client.CloseIdleConnections()
	}
	c := &tls.Config{InsecureSkipVerify: true}
	conn, err := (&tls.Dialer{Config: c}).DialContext(a.t.Context(), "tcp",
		strings.TrimPrefix(a.config.Host, "https://"))
	if err != nil {
		a.t.Fatal(err)
	}
	defer conn.Close()
	leaf := conn.(*tls.Conn).ConnectionState().PeerCertificates[0]
	if err := leaf.VerifyHostname(a.Host.Gateway.String()); err != nil {
		a.t.Errorf("serving certificate: %v", err)
	}
}

func (a *kubeletClient) checkExec() {
	path := "/exec/" + a.ns + "/echoes/c?" + url.Values{"command": {"sh", "-c", "cat; echo out; echo err >&2; exit 7"},
		"input": {"1"}, "output": {"1"}, "error": {"1"}}.Encode()
	input := strings.Repeat("0123456789abcdef", 64<<10) // larger than any buffer in the path
	for name, ws := range map[string]bool{"SPDY": false, "WebSocket": true} {
		var out, errs bytes.Buffer
		err := a.executor(ws, path).StreamWithContext(a.t.Context(),
			remotecommand.StreamOptions{Stdin: strings.NewReader(input), Stdout: &out, Stderr: &errs})
		var code clientexec.CodeExitError
		if !errors.As(err, &code) || code.Code != 7 || out.String() != input+"out\n" || errs.String() != "err\n" {
			a.t.Errorf("%s: %v, %d bytes, %q", name, err, out.Len(), errs.String())
		}
		out.Reset()
		tty := "/exec/" + a.ns + "/echoes/c?input=1&output=1&tty=1&" +
			url.Values{"command": {"sh", "-c", "until stty size | grep '33 77'; do sleep 0.1; done"}}.Encode()
		in, stdin := io.Pipe()
		err = a.executor(ws, tty).StreamWithContext(a.t.Context(), remotecommand.StreamOptions{
			Stdin: in, Stdout: &out, Tty: true, TerminalSizeQueue: &fixedSize{},
		})
		_ = stdin.Close()
		if err != nil || !strings.HasSuffix(out.String(), "33 77\r\n") {
			a.t.Errorf("%s with a TTY: %v %q", name, err, out.String())
		}
		for pod, want := range map[string]string{"missing/c": `pods "missing" not found`,
			"echoes/none": `container not found ("none")`} {
			err := a.executor(ws, "/exec/"+a.ns+"/"+pod+"?command=true&output=1").StreamWithContext(a.t.Context(),
				remotecommand.StreamOptions{Stdout: &out})
			if err == nil || !ws && !strings.Contains(err.Error(), want) {
				a.t.Errorf("%s %s: %v", name, pod, err)
			}
		}
	}
}

// fixedSize is a terminal size queue with one size.
type fixedSize struct{ sent bool }

func (o *fixedSize) Next() *remotecommand.TerminalSize {
	if o.sent {
		return nil
	}
	o.sent = true
	return &remotecommand.TerminalSize{Width: 77, Height: 33}
}

func (a *kubeletClient) checkAttach() {
	for name, ws := range map[string]bool{"SPDY": false, "WebSocket": true} {
		ctx, cancel := context.WithTimeout(a.t.Context(), waitTimeout)
		in, stdin := io.Pipe()
		stdout, out := io.Pipe()
		done := make(chan error, 1)
		go func() {
			done <- a.executor(ws, "/attach/"+a.ns+"/echoes/c?input=1&output=1").StreamWithContext(ctx,
				remotecommand.StreamOptions{Stdin: in, Stdout: out})
			_ = out.Close()
		}()
		go func() { _, _ = fmt.Fprintln(stdin, name) }()
		want, got := "got "+name+"\n", make([]byte, len("got "+name+"\n"))
		if _, err := io.ReadFull(stdout, got); err != nil || string(got) != want {
			a.t.Errorf("attach by %s: %q, %v", name, got, err)
		}
		cancel()
		_ = stdin.Close()
		_ = stdout.Close()
		<-done
	}
}

func (a *kubeletClient) checkLogs() {
	path := "/containerLogs/" + a.ns
	for _, name := range []string{"SPDY", "WebSocket"} { // the runtime writes the lines after it has sent them
		a.WaitLog("echoes", "c", "got "+name)
		a.WaitLog("echoes", "c", "err "+name)
	}
	a.Wait("again", "restarted", func(p *corev1.Pod) bool { return status(p, "c").RestartCount > 0 })
	for query, want := range map[string]string{
		"/echoes/c?stream=Stdout&tailLines=2":   `^got .*\ngot .*\n$`,
		"/echoes/c?stream=Stderr&tailLines=1":   `^err .*\n$`,
		"/echoes/c?limitBytes=4":                `^star$`,
		"/echoes/c?timestamps=true&tailLines=1": `^\d{4}-\d\d-\d\dT.*Z (got|err) `,
		"/again/c?previous=true":                `^run once\n$`, "/again/c?follow=true": `^run once\n$`,
		"/echoes/c?sinceTime=2999-01-01T00:00:00Z": `^$`,
	} {
		if code, body := a.get(path + query); code != 200 || !regexp.MustCompile(want).MatchString(body) {
			a.t.Errorf("%s: %d %q", query, code, body)
		}
	}
	for query, want := range map[string]string{
		"/none/c": `404 pods "none" not found`, "/echoes/none": `404 container "none" not found in pod "echoes"`,
		"/echoes/c?previous=true": `400 previous terminated container "c" in pod "echoes" not found`,
	} {
		if code, body := a.get(path + query); fmt.Sprint(code, " ", strings.TrimSpace(body)) != want {
			a.t.Errorf("%s: %d %s", query, code, body)
		}
	}
	a.checkLogFollow()
}

// checkLogFollow checks that follow=true returns a line that is written later.
func (a *kubeletClient) checkLogFollow() {
	ctx, cancel := context.WithTimeout(a.t.Context(), waitTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet,
		a.config.Host+"/containerLogs/"+a.ns+"/echoes/c?follow=true&tailLines=1", nil)
	if err != nil {
		a.t.Fatal(err)
	}
	resp, err := a.http.Do(req)
	if err != nil {
		a.t.Fatal(err)
	}
	defer resp.Body.Close()
	lines := bufio.NewScanner(resp.Body)
	lines.Scan()
	err = a.executor(false, "/exec/"+a.ns+
		"/echoes/c?command=sh&command=-c&command=echo+news+%3E+/proc/1/fd/1&output=1").
		StreamWithContext(ctx, remotecommand.StreamOptions{Stdout: io.Discard})
	if err != nil || !lines.Scan() || lines.Text() != "news" {
		a.t.Errorf("follow: got line %q, %v", lines.Text(), err)
	}
}

func (a *kubeletClient) checkPortForward() {
	for name, tunnel := range map[string]bool{"SPDY": false, "WebSocket": true} {
		u := a.url("/portForward/" + a.ns + "/echoes")
		rt, up, err := spdy.RoundTripperFor(a.config)
		if err != nil {
			a.t.Fatal(err)
		}
		dialer := spdy.NewDialer(up, &http.Client{Transport: rt}, http.MethodPost, u)
		if tunnel {
			if dialer, err = portforward.NewSPDYOverWebsocketDialer(u, a.config); err != nil {
				a.t.Fatal(err)
			}
		}
		stop, ready, done := make(chan struct{}), make(chan struct{}), make(chan error, 1)
		fw, err := portforward.NewOnAddresses(dialer, []string{"127.0.0.1"}, []string{"0:80", "0:81"}, stop, ready,
			io.Discard, io.Discard)
		if err != nil {
			a.t.Fatal(err)
		}
		go func() { done <- fw.ForwardPorts() }()
		select {
		case <-ready:
		case err := <-done:
			a.t.Fatal(name, err)
		}
		ports, err := fw.GetPorts()
		if err != nil {
			a.t.Fatal(err)
		}
		for range 3 {
			if resp, err := http.Get(fmt.Sprintf("http://127.0.0.1:%d/", ports[1].Local)); err == nil {
				resp.Body.Close()
				a.t.Errorf("%s: response from a closed port", name)
			}
			req, _ := http.NewRequestWithContext(a.t.Context(), http.MethodGet,
				fmt.Sprintf("http://127.0.0.1:%d/", ports[0].Local), nil)
			req.Close = true
			resp, err := http.DefaultClient.Do(req)
			if err != nil {
				a.t.Errorf("%s, after a connection to a closed port: %v", name, err)
				continue
			}
			body, err := io.ReadAll(resp.Body)
			resp.Body.Close()
			if resp.StatusCode != 200 || !strings.Contains(string(body), "nginx") || err != nil {
				a.t.Errorf("%s: %s %q %v", name, resp.Status, body, err)
			}
		}
		close(stop)
		if err := <-done; err != nil {
			a.t.Errorf("%s: %v", name, err)
		}
	}
}

// scrape reads a metrics endpoint. It returns the values by metric name and pod/container.
func (a *kubeletClient) scrape(path string) map[string]map[string]float64 {
	code, body := a.get(path)
	parser := expfmt.NewTextParser(model.UTF8Validation)
	all, err := parser.TextToMetricFamilies(strings.NewReader(body))
	if code != 200 || err != nil {
		a.t.Fatalf("%s: %d %v\n%s", path, code, err, body)
	}
	out := map[string]map[string]float64{}
	for name, f := range all {
		out[name] = map[string]float64{}
		for _, m := range f.GetMetric() {
			l := map[string]string{}
			for _, p := range m.GetLabel() {
				l[p.GetName()] = p.GetValue()
			}
			if l["namespace"] != "" && l["namespace"] != a.ns {
				continue
			}
			out[name][l["pod"]+"/"+l["container"]+l["interface"]] = m.GetCounter().GetValue() + m.GetGauge().GetValue()
		}
	}
	return out
}

func (a *kubeletClient) checkStatsAndMetrics() {
	var sum stats.Summary
	code, body := a.get("/stats/summary")
	if err := json.Unmarshal([]byte(body), &sum); code != 200 || err != nil {
		a.t.Fatalf("%d %v", code, err)
	}
	n := sum.Node
	if n.NodeName != a.Host.Name || n.CPU.UsageNanoCores == nil || *n.CPU.UsageCoreNanoSeconds == 0 ||
		*n.Memory.WorkingSetBytes == 0 ||
		*n.Memory.AvailableBytes == 0 || *n.Fs.CapacityBytes == 0 || *n.Runtime.ImageFs.CapacityBytes == 0 ||
		*n.Rlimit.MaxPID == 0 {
		a.t.Errorf("node stats: %s", body)
	}
	found := false
	for _, p := range sum.Pods {
		if p.PodRef.Namespace != a.ns || p.PodRef.Name != "echoes" {
			continue
		}
		found = true
		if len(p.Containers) != 3 || p.CPU == nil || p.CPU.UsageNanoCores == nil || *p.Memory.WorkingSetBytes == 0 ||
			*p.Network.RxBytes == 0 ||
			*p.EphemeralStorage.UsedBytes < 1<<20 || *p.ProcessStats.ProcessCount < 4 {
			a.t.Errorf("pod stats: %+v", p)
		}
		volume := slices.IndexFunc(p.VolumeStats, func(v stats.VolumeStats) bool { return v.Name == "data" })
		if volume < 0 || *p.VolumeStats[volume].UsedBytes < 1<<20 || *p.VolumeStats[volume].CapacityBytes == 0 {
			a.t.Errorf("volume stats: %+v", p.VolumeStats)
		}
		for _, k := range p.Containers {
			if *k.Memory.WorkingSetBytes == 0 || *k.Memory.RSSBytes == 0 || k.Rootfs == nil || k.Logs == nil ||
				k.Name == "web" && (k.Memory.AvailableBytes == nil || *k.Memory.AvailableBytes >= 64<<20) ||
				k.Name == "c" && *k.Logs.UsedBytes == 0 {
				a.t.Errorf("stats of container %s: %+v", k.Name, k)
			}
		}
	}
	if !found {
		a.t.Errorf("no stats of the pod: %s", body)
	}
	r := a.scrape("/metrics/resource")
	for _, name := range []string{"container_cpu_usage_seconds_total", "container_memory_working_set_bytes",
		"container_start_time_seconds"} {
		if r[name]["echoes/web"] <= 0 {
			a.t.Errorf("%s: got %v, want a value for echoes/web", name, r[name])
		}
	}
	if r["pod_memory_working_set_bytes"]["echoes/"] < r["container_memory_working_set_bytes"]["echoes/web"] ||
		r["node_cpu_usage_seconds_total"]["/"] <= 0 {
		a.t.Errorf("pod and node metrics: %v", r)
	}
	c := a.scrape("/metrics/cadvisor")
	for name, key := range map[string]string{
		"container_cpu_usage_seconds_total": "echoes/web", "container_memory_working_set_bytes": "echoes/web",
		"container_memory_rss":     "echoes/web",
		"container_spec_cpu_quota": "echoes/web", "container_spec_memory_limit_bytes": "echoes/web",
		"container_processes":                   "echoes/c",
		"container_network_receive_bytes_total": "echoes/eth0", "container_network_transmit_bytes_total": "echoes/eth0",
		"machine_cpu_cores": "/", "machine_memory_bytes": "/",
	} {
		if c[name][key] <= 0 {
			a.t.Errorf("%s of %s: got %v", name, key, c[name])
		}
	}
	if p := a.scrape("/metrics/probes"); p["prober_probe_total"]["echoes/web"] <= 0 || len(p) > 2 {
		a.t.Errorf("probes: %v", p)
	}
}

func (a *kubeletClient) checkEndpoints() {
	for path, want := range map[string]string{
		"/healthz": "ok", "/configz": `"maxPods":42`, "/pods": `"name":"echoes"`,
		"/runningpods/": `"image":"nginx:1.14.2"`,
		"/metrics":      "kubelet_running_pods ",
		"/logs/":        "<a href=",
	} {
		if code, body := a.get(path); code != 200 || !strings.Contains(body, want) {
			a.t.Errorf("%s: %d %.300s", path, code, body)
		}
	}
}

func (a *kubeletClient) checkRun() {
	for query, want := range map[string]string{"cmd=echo+one+two": "200 one two",
		"cmd=false": "500 command 'false' failed: command terminated with exit code 1: "} {
		resp, err := a.http.Post(a.config.Host+"/run/"+a.ns+"/echoes/c?"+query, "", nil)
		if err != nil {
			a.t.Fatal(err)
		}
		body, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		if got := fmt.Sprint(resp.StatusCode, " ", strings.TrimSuffix(string(body), "\n")); got != want {
			a.t.Errorf("run: %q, want %q", got, want)
		}
	}
}
