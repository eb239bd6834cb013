package main

import (
	"context"
	"crypto/x509"
	_ "embed"
	"encoding/base64"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"berth/control/pki"
	"berth/test/hosts"
)

// objects are the objects that kubeadm creates to let nodes join: a bootstrap token, the cluster CA, and RBAC
// rules for certificate requests.
//
//go:embed stock.yaml
var objects string

// bootstrap is the bootstrap token in objects.
const bootstrap = "abcdef.0123456789abcdef"

// startStock starts a control plane of Kubernetes components, always on loopback.
func startStock(ctx context.Context, p *programs, _ network, dir string) (*controlPlane, error) {
	pl, authority, err := startAPIServer(ctx, p, dir)
	if err != nil {
		return pl, err
	}
	var ports [2]int // controller manager, scheduler
	for i := range ports {
		if ports[i], err = hosts.FreePort(); err != nil {
			return pl, err
		}
	}
	key := func(name string) string { return filepath.Join(dir, "pki", name) }
	if err := pl.start(ctx, "kube-controller-manager", p.of("kube-controller-manager"), "--kubeconfig", pl.kubeconfig,
		"--secure-port", fmt.Sprint(ports[0]),
		"--cluster-signing-cert-file", key("ca.crt"), "--cluster-signing-key-file", key("ca.key"), "--root-ca-file",
		key("ca.crt"),
		"--service-account-private-key-file", key("sa.key"), "--use-service-account-credentials", "--controllers",
		"*,bootstrapsigner,tokencleaner", "--leader-elect=false",
		"--flex-volume-plugin-dir", filepath.Join(dir, "flexvolumes")); err != nil {
		return pl, err
	}
	if err := pl.start(ctx, "kube-scheduler", p.of("kube-scheduler"), "--kubeconfig", pl.kubeconfig, "--secure-port",
		fmt.Sprint(ports[1]), "--leader-elect=false"); err != nil {
		return pl, err
	}
	if err := pl.ready(ctx, "the namespace kube-public", "namespace/kube-public", "get", "namespace", "kube-public",
		"-o", "name"); err != nil {
		return pl, err
	}
	id, secret, _ := strings.Cut(bootstrap, ".")
	text := strings.NewReplacer("$ID", id, "$SECRET", secret, "$SERVER", pl.server, "$CA",
		base64.StdEncoding.EncodeToString(authority.PEM())).Replace(objects)
	_, err = pl.kubectlOutput(ctx, text, "apply", "-f", "-")
	return pl, err
}

// startAPIServer starts etcd and kube-apiserver on loopback.
func startAPIServer(ctx context.Context, p *programs, dir string) (*controlPlane, *pki.Authority, error) {
	var ports [3]int // etcd clients, etcd peers, API server
	for i := range ports {
		var err error
		if ports[i], err = hosts.FreePort(); err != nil {
			return nil, nil, err
		}
	}
	local := func(scheme string, i int) string { return fmt.Sprintf("%s://127.0.0.1:%d", scheme, ports[i]) }
	keys := filepath.Join(dir, "pki")
	pl := &controlPlane{kubectl: p.kubectl, kubeconfig: filepath.Join(keys, "admin.kubeconfig"),
		server: local("https", 2), dir: dir, approve: true}
	authority, err := certificates(keys, pl)
	if err != nil {
		return pl, nil, err
	}
	pl.join = []string{"--server", pl.server, "--token", bootstrap, "--discovery-token-ca-cert-hash", authority.Hash()}
	key := func(name string) string { return filepath.Join(keys, name) }
	if err := pl.start(ctx, "etcd", p.of("etcd"), "--data-dir", filepath.Join(dir, "etcd"), "--listen-client-urls",
		local("http", 0), "--advertise-client-urls", local("http", 0),
		"--listen-peer-urls", local("http", 1), "--initial-advertise-peer-urls", local("http", 1), "--initial-cluster",
		"default="+local("http", 1)); err != nil {
		return pl, nil, err
	}
	if err := pl.start(ctx, "kube-apiserver", p.of("kube-apiserver"), "--etcd-servers", local("http", 0),
		"--secure-port", fmt.Sprint(ports[2]),
		"--service-account-issuer", "https://kubernetes.default.svc", "--service-account-key-file", key("sa.key"),
		"--service-account-signing-key-file", key("sa.key"),
		"--tls-cert-file", key("server.crt"), "--tls-private-key-file", key("server.key"), "--client-ca-file",
		key("ca.crt"),
		"--kubelet-client-certificate", key("kubelet-client.crt"), "--kubelet-client-key", key("kubelet-client.key"),
		"--kubelet-certificate-authority", key("ca.crt"),
		"--kubelet-preferred-address-types", "InternalIP", "--authorization-mode", "Node,RBAC",
		"--enable-admission-plugins", "NodeRestriction",
		"--enable-bootstrap-token-auth", "--service-cluster-ip-range", "10.96.0.0/16",
		"--allow-privileged"); err != nil {
		return pl, nil, err
	}
	if err := pl.ready(ctx, "kube-apiserver to be ready", "ok", "get", "--raw", "/readyz"); err != nil {
		return pl, nil, err
	}
	return pl, authority, nil
}

// certificates creates the CA, the certificates of the components and the administrator's kubeconfig.
func certificates(dir string, pl *controlPlane) (*pki.Authority, error) {
	authority, err := pki.Open(dir, time.Now)
	if err != nil {
		return nil, err
	}
	// No binding grants access to the administrator's group here.
	err = authority.WriteKubeconfig(pl.kubeconfig, pl.server, pki.SuperAdminSubject())
	for name, s := range map[string]pki.Subject{
		"server": pki.ServerSubject([]string{"localhost", "kubernetes.default.svc"},
			[]net.IP{net.IPv4(127, 0, 0, 1), net.IPv4(10, 96, 0, 1)}),
		// No RBAC rule grants access to the user name here. As with kubeadm, the group does.
		"kubelet-client": {Name: pki.KubeletClientUser, Groups: []string{"system:masters"},
			ExtKeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}},
		"sa": {Name: "service-accounts"}, // only the key is used
	} {
		cert, key, err2 := authority.Issue(s)
		err = errors.Join(err, err2, os.WriteFile(filepath.Join(dir, name+".crt"), cert, 0o600),
			os.WriteFile(filepath.Join(dir, name+".key"), key, 0o600))
	}
	return authority, err
}
