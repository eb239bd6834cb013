package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
)

// Addresses and files of the node. The address is that of the kubelet's flags in the files of kubeadm.
const (
	nodeName        = "vm"
	nodeAddress     = "10.0.0.7"
	server          = "https://" + nodeAddress + ":6443"
	serverDir       = "/var/lib/berth-control"
	adminKubeconfig = serverDir + "/admin.kubeconfig"
	extraDir        = "/extra"
	kubeadmDir      = extraDir + "/kubeadm"
	staticPodDir    = "/etc/kubernetes/manifests"
	clientCert      = "/var/lib/kubelet/pki/kubelet-client-current.pem"
)

// The machine has no network device.
const addressUnit = `[Unit]
Description=address of the node
DefaultDependencies=no
Before=network.target

[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/usr/bin/env PATH=/usr/sbin:/usr/bin sh -c 'ip link add eth0 type dummy && ip address add ` +
	nodeAddress + `/24 dev eth0 && ip link set eth0 up && ip route add default via 10.0.0.1'

[Install]
WantedBy=multi-user.target
`

// The certificates of the nodes are valid for certificateLifetime, so that the agents rotate them.
const serverUnit = `[Unit]
Description=control server
Wants=node-address.service
After=node-address.service

[Service]
Type=notify
TimeoutStartSec=infinity
ExecStart=` + extraDir + `/berth-control serve --data-dir ` + serverDir + ` --advertise-address ` + nodeAddress +
	` --tls-san ` + nodeAddress + ` --cluster-signing-duration ` + certificateLifetime + `
Restart=always

[Install]
WantedBy=multi-user.target
`

const certificateLifetime = "8m"

// longChecks gives the checks of this file more time than those of an agent alone.
func longChecks(t *testing.T) {
	t.Helper()
	waitTimeout = 5 * time.Minute
	deadline = time.Now().Add(28*time.Minute - uptime())
	t.Setenv("KUBECONFIG", adminKubeconfig)
	t.Setenv("PATH", "/usr/local/bin:/usr/sbin:/usr/bin:"+extraDir)
}

func writeFile(t *testing.T, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// kubeadmNode makes a node as kubeadm join makes it, with a control server on the same machine.
func kubeadmNode(t *testing.T) {
	longChecks(t)
	for _, path := range []string{ // links of the disk image to a berth that is not on this machine
		"/usr/bin/berth", "/etc/systemd/system/berth.service",
		"/etc/systemd/system/multi-user.target.wants/berth.service",
	} {
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.RemoveAll("/etc/berth"); err != nil {
		t.Fatal(err)
	}
	writeFile(t, "/etc/hosts", "127.0.0.1 localhost\n"+nodeAddress+" "+nodeName+"\n")
	writeFile(t, "/etc/systemd/system/node-address.service", addressUnit)
	writeFile(t, "/etc/systemd/system/berth-control.service", serverUnit)
	output(t, "systemctl", "daemon-reload")
	output(t, "systemctl", "enable", "--now", "node-address", "berth-control")
	joinAsKubeadm(t)
	writeStaticPods(t)
	output(t, "systemctl", "daemon-reload")
	output(t, "systemctl", "enable", "--now", "kubelet")
	waitNodeReady(t, time.Time{})
	// kubeadm join removes the bootstrap kubeconfig when the kubelet has its own.
	if err := os.Remove("/etc/kubernetes/bootstrap-kubelet.conf"); err != nil {
		t.Error(err)
	}
	t.Logf("%s", output(t, "kubelet", "--version"))
}

// joinAsKubeadm writes the files of kubeadm join and of the package of the kubelet.
func joinAsKubeadm(t *testing.T) {
	t.Helper()
	waitFor(t, "the certificate authority", func() (bool, string) {
		_, err := os.Stat(serverDir + "/pki/ca.crt")
		return err == nil, fmt.Sprint(err)
	})
	ca := readFile(t, serverDir+"/pki/ca.crt")
	writeFile(t, "/etc/kubernetes/pki/ca.crt", ca)
	token := regexp.MustCompile(`[a-z0-9]{6}\.[a-z0-9]{16}`).FindString(output(t, "berth-control", "token", "create",
		"--server", server))
	if token == "" {
		t.Fatal("berth-control token create printed no token")
	}
	output(t, "kubectl", "config", "set-cluster", "default-cluster", "--server="+server, "--embed-certs=true",
		"--certificate-authority=/etc/kubernetes/pki/ca.crt", "--kubeconfig=/etc/kubernetes/bootstrap-kubelet.conf")
	output(t, "sh", "-c", "cd /etc/kubernetes && export KUBECONFIG=bootstrap-kubelet.conf && "+
		"kubectl config set-credentials tls-bootstrap-token-user --token="+token+" && "+
		"kubectl config set-context default --cluster=default-cluster --user=tls-bootstrap-token-user && "+
		"kubectl config use-context default")
	read := func(name string) string { return readFile(t, filepath.Join(kubeadmDir, name)) }
	// This machine has no systemd-resolved. Serving certificates by the server make kubectl logs work.
	config := regexp.MustCompile(`(?m)^resolvConf: .*\n`).ReplaceAllString(read("config.yaml"), "")
	writeFile(t, "/var/lib/kubelet/config.yaml", config+"serverTLSBootstrap: true\n")
	writeFile(t, "/var/lib/kubelet/kubeadm-flags.env", read("kubeadm-flags.env"))
	writeFile(t, "/etc/default/kubelet", read("kubelet.env"))
	writeFile(t, "/usr/lib/systemd/system/kubelet.service", read("kubelet.service"))
	writeFile(t, "/usr/lib/systemd/system/kubelet.service.d/10-kubeadm.conf", read("10-kubeadm.conf"))
	if err := os.Symlink(extraDir+"/kubelet", "/usr/bin/kubelet"); err != nil {
		t.Fatal(err)
	}
}

// client returns a client of the control server.
func client(t *testing.T) kubernetes.Interface {
	t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", adminKubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	config.Timeout = 30 * time.Second
	c, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// waitNodeReady waits until the Node is ready and its lease was renewed after a time.
func waitNodeReady(t *testing.T, after time.Time) *corev1.Node {
	t.Helper()
	c := client(t)
	var found *corev1.Node
	waitFor(t, "the Node to be ready", func() (bool, string) {
		n, err := c.CoreV1().Nodes().Get(t.Context(), nodeName, metav1.GetOptions{})
		if err != nil {
			return false, err.Error()
		}
		found = n
		ready := false
		for _, cond := range n.Status.Conditions {
			ready = ready || cond.Type == corev1.NodeReady && cond.Status == corev1.ConditionTrue
		}
		lease, err := c.CoordinationV1().Leases("kube-node-lease").Get(t.Context(), nodeName, metav1.GetOptions{})
		if err != nil {
			return false, err.Error()
		}
		renewed := lease.Spec.RenewTime != nil && lease.Spec.RenewTime.After(after)
		return ready && renewed, fmt.Sprint(n.Status.Conditions, lease.Spec.RenewTime)
	})
	return found
}

// units returns the states of both services.
func units(t *testing.T) string {
	t.Helper()
	out := output(t, "sh", "-c", "systemctl is-enabled kubelet berth; systemctl is-active kubelet berth; true")
	return strings.Join(strings.Fields(out), " ")
}

func checkUnits(t *testing.T, want string) {
	t.Helper()
	if got := units(t); got != want {
		t.Errorf("states of kubelet and berth: got %q, want %q", got, want)
	}
}

// rotatedCertificate checks that berth renews the client certificate in the file of the kubelet.
func rotatedCertificate(t *testing.T) {
	longChecks(t)
	before := loadBefore(t)
	waitFor(t, "another client certificate than before the takeover", func() (bool, string) {
		now, err := os.Readlink(clientCert)
		return err == nil && now != before.Certificate, fmt.Sprint(now, " ", err)
	})
	now, err := os.Readlink(clientCert)
	if err != nil || filepath.Dir(now) != "." && filepath.Dir(now) != filepath.Dir(clientCert) {
		t.Errorf("the current certificate is %s, %v", now, err)
	}
	t.Logf("certificate of the kubelet: %s, of berth: %s", filepath.Base(before.Certificate), filepath.Base(now))
	checkContains(t, "/etc/kubernetes/kubelet.conf", readFile(t, "/etc/kubernetes/kubelet.conf"), clientCert)
}

// dialRuntime is the address of containerd for gRPC.
const dialRuntime = "unix:///run/containerd/containerd.sock"
