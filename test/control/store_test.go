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

// cluster is an etcd of three members on loopback. An address that was free may be
// another's by the time a member listens on it: then all are chosen anew.
func cluster(t *testing.T) []string {
	t.Helper()
	const tries = 10
	for range tries {
		all, endpoints, err := members(t)
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
			case <-time.After(2 * time.Minute):
				t.Fatal("the etcd cluster is not ready")
			}
		}
		return endpoints
	}
	t.Fatalf("no free addresses in %d tries", tries)
	return nil
}

// members starts three members that know each other. When one cannot be started
// none is left.
func members(t *testing.T) (all []*embed.Etcd, endpoints []string, err error) {
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
		c.TickMs, c.ElectionMs = 500, 5000 // a busy machine must not cause elections
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

// TestAPIOnAClusterOutside runs the suite on an etcd cluster of three members.
func TestAPIOnAClusterOutside(t *testing.T) {
	t.Parallel()
	endpoints := cluster(t)
	s := Start(t, func(c *control.Config) { c.Etcd = storage.ClientConfig{Endpoints: endpoints} })
	runSuite(t, s)
}

// TestTwoServersShareACluster writes through one server and reads through another.
func TestTwoServersShareACluster(t *testing.T) {
	t.Parallel()
	endpoints := cluster(t)
	with := func(c *control.Config) { c.Etcd = storage.ClientConfig{Endpoints: endpoints} }
	one := Start(t, with)
	// The second knows the first one's keys, as replicas must.
	two := Start(t, with, func(c *control.Config) { c.EncryptionConfig = filepath.Join(one.DataDir, "pki", "encryption.yaml") })
	one.Kubectl(t, "create", "secret", "generic", "shared", "--from-literal=a=b")
	if got := two.Kubectl(t, "get", "secret", "shared", "-o", "jsonpath={.data.a}"); got != "Yg==" {
		t.Errorf("the other server reads %q", got)
	}
}

// TestSecretsAreSealed looks at what the store really holds.
func TestSecretsAreSealed(t *testing.T) {
	t.Parallel()
	s := Start(t)
	s.Kubectl(t, "create", "secret", "generic", "hidden", "--from-literal=word=sesame-open")
	s.Kubectl(t, "create", "configmap", "plain", "--from-literal=word=sesame-open")
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{"unix://" + filepath.Join(s.DataDir, "etcd", "client.sock")}, Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	for _, c := range []struct {
		key    string
		sealed bool
	}{{"/registry/secrets/default/hidden", true}, {"/registry/configmaps/default/plain", false}} {
		got, err := client.Get(t.Context(), c.key)
		if err != nil || len(got.Kvs) != 1 {
			t.Fatalf("%s: %v, %v", c.key, got, err)
		}
		value := got.Kvs[0].Value
		if bytes.Contains(value, []byte("sesame-open")) == c.sealed || bytes.HasPrefix(value, []byte("k8s:enc:secretbox:")) != c.sealed {
			t.Errorf("%s is stored as %.40q", c.key, value)
		}
	}
}

// TestServerComesBack stops a server and starts another on its directory.
func TestServerComesBack(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	at := func(c *control.Config) { c.DataDir = dir }
	first := Start(t, at)
	first.Kubectl(t, "create", "secret", "generic", "kept", "--from-literal=a=b")
	before, err := first.Client.CoreV1().Namespaces().Get(t.Context(), "default", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	hash := first.Authority.Hash()
	first.Stop(t)
	second := Start(t, at)
	if got := second.Kubectl(t, "get", "secret", "kept", "-o", "jsonpath={.data.a}"); got != "Yg==" {
		t.Errorf("the secret holds %q", got)
	}
	after, err := second.Client.CoreV1().Namespaces().Get(t.Context(), "default", metav1.GetOptions{})
	if err != nil || after.UID != before.UID || second.Authority.Hash() != hash {
		t.Errorf("namespace %v, then %v, %v; authority %s, then %s", before.UID, after, err, hash, second.Authority.Hash())
	}
}

// TestTwoServersOnOneDirectory tells the second what is wrong.
func TestTwoServersOnOneDirectory(t *testing.T) {
	t.Parallel()
	first := Start(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	c := first.Assembly.Config
	c.Listen = "127.0.0.1:0"
	_, err := control.New(ctx, c)
	if err == nil || !strings.Contains(err.Error(), first.DataDir) || !strings.Contains(err.Error(), "another") {
		t.Errorf("the second server says %v", err)
	}
	first.Kubectl(t, "get", "namespaces")
}

// TestTheProgramSendsInitialEvents asks the real program, which knows what its
// store can do from nobody but itself, for a watch that starts with what is there.
func TestTheProgramSendsInitialEvents(t *testing.T) {
	t.Parallel()
	p := Launch(t)
	client, err := p.WaitReady(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	yes := true
	var seconds int64 = 5
	_ = try(t, func(ctx context.Context) error {
		w, err := client.CoreV1().Namespaces().Watch(ctx, metav1.ListOptions{
			SendInitialEvents: &yes, AllowWatchBookmarks: true, ResourceVersionMatch: metav1.ResourceVersionMatchNotOlderThan, TimeoutSeconds: &seconds,
		})
		if err != nil {
			return err
		}
		defer w.Stop()
		for e := range w.ResultChan() {
			if m, ok := e.Object.(metav1.Object); ok && e.Type == watch.Bookmark && m.GetAnnotations()[metav1.InitialEventsAnnotationKey] == "true" {
				return nil
			}
			if e.Type == watch.Error {
				return apierrors.FromObject(e.Object)
			}
		}
		return errors.New("the watch ends without the bookmark")
	}, func(err error) bool { return err == nil })
}
