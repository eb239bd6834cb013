package control

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/url"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	"berth/control"
	"berth/control/storage"
)

// startEtcdCluster starts an etcd cluster of three members on the loopback interface and returns the client
// endpoints. If a port is in use, it retries with other ports.
func startEtcdCluster(t *testing.T) []string {
	t.Helper()
	const tries = 10
	for range tries {
		all, endpoints, err := startEtcdMembers(t)
		if errors.Is(err, syscall.EADDRINUSE) {
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range all {
			t.Cleanup(e.Close)
		}
		for _, e := range all {
			select {
			case <-e.Server.ReadyNotify():
			case <-time.After(5 * time.Minute):
				t.Fatal("etcd cluster is not ready within two minutes")
			}
		}
		return endpoints
	}
	t.Fatalf("no free ports after %d attempts", tries)
	return nil
}

// startEtcdMembers starts three members of a cluster. If one fails to start, it stops the others.
func startEtcdMembers(t *testing.T) (all []*embed.Etcd, endpoints []string, err error) {
	t.Helper()
	const n = 3
	var clients, peers [n]url.URL
	var initial []string
	for i := range n {
		clients[i] = url.URL{Scheme: "http", Host: freeAddress(t)}
		peers[i] = url.URL{Scheme: "http", Host: freeAddress(t)}
		initial = append(initial, fmt.Sprintf("m%d=%s", i, peers[i].String()))
	}
	for i := range n {
		c := embed.NewConfig()
		c.Name, c.Dir = fmt.Sprintf("m%d", i), t.TempDir()
		c.ListenClientUrls, c.AdvertiseClientUrls = []url.URL{clients[i]}, []url.URL{clients[i]}
		c.ListenPeerUrls, c.AdvertisePeerUrls = []url.URL{peers[i]}, []url.URL{peers[i]}
		c.InitialCluster = strings.Join(initial, ",")
		c.UnsafeNoFsync = true
		c.TickMs, c.ElectionMs = 500, 5000 // avoids elections on a busy machine
		c.ZapLoggerBuilder = embed.NewZapLoggerBuilder(zap.NewNop())
		e, err := embed.StartEtcd(c)
		if err != nil {
			for _, e := range all {
				e.Close()
			}
			return nil, nil, err
		}
		all = append(all, e)
		endpoints = append(endpoints, clients[i].String())
	}
	return all, endpoints, nil
}

// TestAPIWithExternalEtcd runs the suite with an etcd cluster of three members.
func TestAPIWithExternalEtcd(t *testing.T) {
	t.Parallel()
	endpoints := startEtcdCluster(t)
	s := Start(t, func(c *control.Config) { c.Etcd = storage.ClientConfig{Endpoints: endpoints} })
	runSuite(t, s)
}

// TestTwoServersShareEtcd writes through one server and reads through another.
func TestTwoServersShareEtcd(t *testing.T) {
	t.Parallel()
	endpoints := startEtcdCluster(t)
	withEtcd := func(c *control.Config) { c.Etcd = storage.ClientConfig{Endpoints: endpoints} }
	one := Start(t, withEtcd)
	// Replicas require the same encryption keys.
	two := Start(t, withEtcd, func(c *control.Config) {
		c.EncryptionConfig = filepath.Join(one.DataDir, "pki",
			"encryption.yaml")
	})
	one.Kubectl(t, "create", "secret", "generic", "shared", "--from-literal=a=b")
	if got := two.Kubectl(t, "get", "secret", "shared", "-o", "jsonpath={.data.a}"); got != "Yg==" {
		t.Errorf("secret read through the other server: got %q", got)
	}
}

// TestSecretsAreEncrypted checks that the default configuration encrypts secrets, but not ConfigMaps.
func TestSecretsAreEncrypted(t *testing.T) {
	t.Parallel()
	s := Shared(t)
	s.Kubectl(t, "create", "secret", "generic", "hidden", "--from-literal=word=sesame-open")
	s.Kubectl(t, "create", "configmap", "plain", "--from-literal=word=sesame-open")
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{"unix://" + filepath.Join(s.DataDir, "etcd",
		"client.sock")}, Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	for _, c := range []struct {
		key       string
		encrypted bool
	}{
		{"/registry/secrets/" + s.Namespace + "/hidden", true},
		{"/registry/configmaps/" + s.Namespace + "/plain", false},
	} {
		got, err := client.Get(t.Context(), c.key)
		if err != nil || len(got.Kvs) != 1 {
			t.Fatalf("get %s from etcd: got %v, %v", c.key, got, err)
		}
		value := got.Kvs[0].Value
		if bytes.Contains(value, []byte("sesame-open")) == c.encrypted || bytes.HasPrefix(value,
			[]byte("k8s:enc:secretbox:")) != c.encrypted {
			t.Errorf("%s: got stored value %.40q", c.key, value)
		}
	}
}

// TestServerRestart stops a server and starts another one with its data directory.
func TestServerRestart(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	withDataDir := func(c *control.Config) { c.DataDir = dir }
	first := Start(t, withDataDir)
	first.Kubectl(t, "create", "secret", "generic", "kept", "--from-literal=a=b")
	before, err := first.Client.CoreV1().Namespaces().Get(t.Context(), "default", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	hash := first.Authority.Hash()
	first.Stop(t)
	second := Start(t, withDataDir)
	if got := second.Kubectl(t, "get", "secret", "kept", "-o", "jsonpath={.data.a}"); got != "Yg==" {
		t.Errorf("got secret data %q", got)
	}
	after, err := second.Client.CoreV1().Namespaces().Get(t.Context(), "default", metav1.GetOptions{})
	if err != nil || after.UID != before.UID || second.Authority.Hash() != hash {
		t.Errorf("after the restart: namespace UID was %v, got %v, %v; CA hash was %s, got %s", before.UID,
			after, err, hash, second.Authority.Hash())
	}
}

// TestDataDirectoryIsLocked checks the error of a second server with the same data directory.
func TestDataDirectoryIsLocked(t *testing.T) {
	t.Parallel()
	first := Shared(t)
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	c := first.Assembly.Config
	c.Listen = "127.0.0.1:0"
	_, err := control.New(ctx, c)
	if err == nil || !strings.Contains(err.Error(), first.DataDir) || !strings.Contains(err.Error(), "another") {
		t.Errorf("second server: got %v, want an error for the data directory", err)
	}
	first.Kubectl(t, "get", "namespaces")
}

// TestSendInitialEvents watches with sendInitialEvents. It runs the server as a separate process, which
// must detect that its etcd supports this feature.
func TestSendInitialEvents(t *testing.T) {
	t.Parallel()
	p := Launch(t)
	client, err := p.WaitReady(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	yes := true
	var seconds int64 = 5
	_ = retryUntil(t, func(ctx context.Context) error {
		w, err := client.CoreV1().Namespaces().Watch(ctx, metav1.ListOptions{
			SendInitialEvents: &yes, AllowWatchBookmarks: true,
			ResourceVersionMatch: metav1.ResourceVersionMatchNotOlderThan,
			TimeoutSeconds:       &seconds,
		})
		if err != nil {
			return err
		}
		defer w.Stop()
		for e := range w.ResultChan() {
			if m, ok := e.Object.(metav1.Object); ok && e.Type == watch.Bookmark &&
				m.GetAnnotations()[metav1.InitialEventsAnnotationKey] == "true" {
				return nil
			}
			if e.Type == watch.Error {
				return apierrors.FromObject(e.Object)
			}
		}
		return errors.New("watch ended without the initial events bookmark")
	}, func(err error) bool { return err == nil })
}

// TestSecondServerTakesOver stops the leader of two servers. The controllers of the other one start.
func TestSecondServerTakesOver(t *testing.T) {
	t.Parallel()
	endpoints := startEtcdCluster(t)
	withEtcd := func(c *control.Config) { c.Etcd = storage.ClientConfig{Endpoints: endpoints} }
	one := Start(t, withEtcd)
	waitForOutput(t, one, "default", "-n", "default", "get", "sa", "default", "-o", "jsonpath={.metadata.name}")
	leader := one.Kubectl(t, "-n", "kube-system", "get", "lease", "berth-control", "-o",
		"jsonpath={.spec.holderIdentity}")
	two := Start(t, withEtcd, func(c *control.Config) {
		c.EncryptionConfig = filepath.Join(one.DataDir, "pki",
			"encryption.yaml")
	})
	if again := two.Kubectl(t, "-n", "kube-system", "get", "lease", "berth-control", "-o",
		"jsonpath={.spec.holderIdentity}"); leader == "" || again != leader {
		t.Errorf("got leader %q, then %q", leader, again)
	}
	one.Stop(t)
	two.Kubectl(t, "create", "namespace", "after")
	waitForOutput(t, two, "default", "-n", "after", "get", "sa", "default", "-o", "jsonpath={.metadata.name}")
}
