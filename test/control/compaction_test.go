package control

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/metadata"

	"berth/control"
)

// etcdClient returns an etcd client of the server's store.
func (s *Server) etcdClient(t *testing.T) *clientv3.Client {
	t.Helper()
	return newEtcdClient(t, s.EtcdClient.Endpoints())
}

// etcdClient returns an etcd client of the server's store.
func (p *Process) etcdClient(t *testing.T) *clientv3.Client {
	t.Helper()
	return newEtcdClient(t, []string{"unix://" + filepath.Join(p.DataDir, "etcd", "client.sock")})
}

func newEtcdClient(t *testing.T, endpoints []string) *clientv3.Client {
	t.Helper()
	c, err := clientv3.New(clientv3.Config{Endpoints: endpoints, Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// TestStoreIsCompacted checks that the server compacts old revisions, that it defragments the store, and
// that events expire. The server is a separate process: with the race detector, the data of this test
// takes half a minute of CPU time.
func TestStoreIsCompacted(t *testing.T) {
	t.Parallel()
	p := Launch(t, "--event-ttl=5s", "--etcd-compaction-interval=2s", "--etcd-defragmentation-interval=1s")
	ctx := t.Context()
	client, err := p.WaitReady(ctx)
	if err != nil {
		t.Fatal(err)
	}
	events := client.CoreV1().Events("default")
	first, err := events.Create(ctx, &corev1.Event{
		ObjectMeta: metav1.ObjectMeta{Name: "short"}, InvolvedObject: corev1.ObjectReference{Kind: "Pod", Name: "p",
			Namespace: "default"}, Reason: "Observed",
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	store := p.etcdClient(t)
	const most = 90 << 20 // more than the threshold for defragmentation
	value := strings.Repeat("x", 1<<20)
	for i := range most >> 20 {
		if _, err := store.Put(ctx, fmt.Sprintf("/ballast/%d", i), value); err != nil {
			t.Fatal(err)
		}
	}
	file := filepath.Join(p.DataDir, "etcd", "data", "member", "snap", "db")
	size := func() int64 {
		st, err := os.Stat(file)
		if err != nil {
			t.Fatal(err)
		}
		return st.Size()
	}
	// etcd has the last writes in its log, and writes them to this file with its next batch.
	waitForResultWithin(t, 2*time.Minute, "store has grown", func() string {
		return fmt.Sprint(size() >= most)
	}, "true")
	if _, err := store.Delete(ctx, "/ballast/", clientv3.WithPrefix()); err != nil {
		t.Fatal(err)
	}
	waitForResultWithin(t, 2*time.Minute, "store is defragmented", func() string {
		return fmt.Sprint(size() < most/2)
	}, "true")
	_, err = store.Get(ctx, "/ballast/0", clientv3.WithRev(revisionOf(t, first.ResourceVersion)))
	if !errors.Is(err, rpctypes.ErrCompacted) {
		t.Errorf("read of an old revision: got %v, want ErrCompacted", err)
	}
	waitForResultWithin(t, 2*time.Minute, "event has expired", func() string {
		_, err := events.Get(ctx, "short", metav1.GetOptions{})
		return fmt.Sprint(apierrors.IsNotFound(err))
	}, "true")
	w, err := events.Watch(ctx, metav1.ListOptions{ResourceVersion: first.ResourceVersion})
	if err == nil {
		e := <-w.ResultChan()
		w.Stop()
		err = apierrors.FromObject(e.Object)
	}
	if !apierrors.IsResourceExpired(err) && !apierrors.IsGone(err) {
		t.Errorf("watch from a compacted revision: got %v, want Expired or Gone", err)
	}
	if _, err := client.CoreV1().Namespaces().Get(ctx, "default", metav1.GetOptions{}); err != nil {
		t.Errorf("object written before the compaction: %v", err)
	}
}

// TestWatchProgressOfUncachedKinds checks that a watch of an unchanged kind gets bookmarks, unless it
// does not request them.
func TestWatchProgressOfUncachedKinds(t *testing.T) {
	t.Parallel()
	s := Start(t, withoutControllers, func(c *control.Config) { c.EtcdCompactionInterval = time.Second })
	ctx := t.Context()
	client, err := metadata.NewForConfig(s.Config)
	if err != nil {
		t.Fatal(err)
	}
	for _, kind := range []schema.GroupVersionResource{
		{Version: "v1", Resource: "persistentvolumes"},
		{Group: "apps", Version: "v1", Resource: "deployments"},
		{Group: "networking.k8s.io", Version: "v1", Resource: "networkpolicies"},
	} {
		t.Run(kind.Resource, func(t *testing.T) {
			t.Parallel()
			all := client.Resource(kind)
			list, err := all.List(ctx, metav1.ListOptions{})
			if err != nil {
				t.Fatal(err)
			}
			withBookmarks, err := all.Watch(ctx, metav1.ListOptions{ResourceVersion: list.ResourceVersion,
				AllowWatchBookmarks: true})
			if err != nil {
				t.Fatal(err)
			}
			defer withBookmarks.Stop()
			withoutBookmarks, err := all.Watch(ctx, metav1.ListOptions{ResourceVersion: list.ResourceVersion})
			if err != nil {
				t.Fatal(err)
			}
			defer withoutBookmarks.Stop()
			other := revisionOf(t, createConfigMap(t, s, "default", configMap("beside-"+kind.Resource)).ResourceVersion)
			// etcd's progress interval is global: another server in this process may have set it to a minute.
			timeout := time.After(3 * time.Minute)
			for bookmark := int64(0); bookmark < other; {
				select {
				case e := <-withBookmarks.ResultChan():
					m, ok := e.Object.(*metav1.PartialObjectMetadata)
					if e.Type != watch.Bookmark || !ok {
						t.Fatalf("watch of an unchanged kind: got %v, want a bookmark", e)
					}
					bookmark = revisionOf(t, m.ResourceVersion)
				case <-timeout:
					t.Fatalf("got bookmark of revision %d, want at least %d", bookmark, other)
				}
			}
			select {
			case e := <-withoutBookmarks.ResultChan():
				t.Errorf("watch without bookmarks: got event %v", e)
			default:
			}
		})
	}
}

func revisionOf(t *testing.T, version string) (n int64) {
	t.Helper()
	if _, err := fmt.Sscan(version, &n); err != nil {
		t.Fatal(err)
	}
	return n
}

// claimsPrefix is the prefix of the keys that record allocated cluster IPs and node ports.
const claimsPrefix = "/registry/berth/claims/"

// TestKillsLeakNoAllocation kills the server while clients create and delete services. Some kills are
// between the allocation and the write of a service. After repair, the allocations match the services,
// no address or port is allocated twice, and all ports can be allocated.
func TestKillsLeakNoAllocation(t *testing.T) {
	t.Parallel()
	const ports, rounds = 16, 8
	p := Launch(t, "--service-node-port-range", "30000-30015")
	for round := range rounds {
		client, err := p.WaitReady(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan int)
		for w := range 4 {
			go func() {
				n := 0
				for ctx.Err() == nil {
					name := fmt.Sprintf("s%d-%d", w, n%3)
					svc := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.ServiceSpec{
						Type: corev1.ServiceTypeNodePort, Ports: []corev1.ServicePort{{Port: 80}}}}
					if _, err := client.CoreV1().Services("default").Create(ctx, svc,
						metav1.CreateOptions{}); err == nil ||
						apierrors.IsAlreadyExists(err) {
						_ = client.CoreV1().Services("default").Delete(ctx, name, metav1.DeleteOptions{})
					}
					n++
				}
				done <- n
			}()
		}
		<-time.After(time.Duration(100+50*round) * time.Millisecond) // kill at varying times
		p.Kill(t)
		cancel()
		tried := 0
		for range 4 {
			tried += <-done
		}
		if tried == 0 {
			t.Errorf("round %d: no writes", round)
		}
		p.Start(t, "--service-node-port-range", "30000-30015")
	}
	if _, err := p.WaitReady(t.Context()); err != nil {
		t.Fatal(err)
	}
	p.Stop(t)
	s := Start(t, func(c *control.Config) {
		c.DataDir, c.ServiceNodePorts.First, c.ServiceNodePorts.Last, c.ServiceRepairInterval = p.DataDir, 30000,
			30000+ports-1, 2*time.Second
	})
	ctx := t.Context()
	store := s.etcdClient(t)
	// The remains of a kill between allocation and write, in case no round has created one.
	for _, key := range []string{"ports/30007", "addresses/10.43.7.7"} {
		_, err := store.Txn(ctx).If(clientv3.Compare(clientv3.Version(claimsPrefix+key), "=", 0)).
			Then(clientv3.OpPut(claimsPrefix+key,
				"6ba7b810-9dad-11d1-80b4-00c04fd430c8 default/never-written")).Commit()
		if err != nil {
			t.Fatal(err)
		}
	}
	waitForResultWithin(t, 2*time.Minute, "mismatch of allocations and services", func() string {
		return s.allocationMismatch(t, store)
	}, "")
	if err := s.Client.CoreV1().RESTClient().Delete().AbsPath("/api/v1/namespaces/default/services").Do(
		ctx).Error(); err != nil {
		t.Fatal(err)
	}
	have := map[string]string{}
	for i := range ports {
		svc := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("last-", i)}, Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeNodePort, Ports: []corev1.ServicePort{{Port: 80}}}}
		out, err := s.Client.CoreV1().Services("default").Create(ctx, svc, metav1.CreateOptions{})
		if err != nil {
			t.Fatalf("allocated %d of %d ports: %v", i, ports, err)
		}
		for _, n := range []string{fmt.Sprint(out.Spec.Ports[0].NodePort), out.Spec.ClusterIP} {
			if have[n] != "" {
				t.Errorf("%s is allocated to %s and %s", n, have[n], out.Name)
			}
			have[n] = out.Name
		}
	}
	waitForResultWithin(t, 2*time.Minute, "mismatch of allocations and services", func() string {
		return s.allocationMismatch(t, store)
	}, "")
}

// allocationMismatch describes a difference between allocations and services, or returns "".
func (s *Server) allocationMismatch(t *testing.T, store *clientv3.Client) string {
	t.Helper()
	list, err := s.Client.CoreV1().Services("").List(t.Context(), metav1.ListOptions{})
	if err != nil {
		return err.Error()
	}
	users := map[string]string{}
	for _, svc := range list.Items {
		names := []string{"addresses/" + svc.Spec.ClusterIP}
		for _, p := range svc.Spec.Ports {
			if p.NodePort != 0 {
				names = append(names, fmt.Sprint("ports/", p.NodePort))
			}
		}
		for _, n := range names {
			if other := users[n]; other != "" {
				t.Errorf("services %s and %s both use %s", other, svc.Name, n)
			}
			users[n] = string(svc.UID)
		}
	}
	got, err := store.Get(t.Context(), claimsPrefix, clientv3.WithPrefix())
	if err != nil {
		return err.Error()
	}
	for _, kv := range got.Kvs {
		n := strings.TrimPrefix(string(kv.Key), claimsPrefix)
		owner, _, _ := strings.Cut(string(kv.Value), " ")
		if users[n] != owner {
			return fmt.Sprintf("%s is allocated to %s", n, kv.Value)
		}
		delete(users, n)
	}
	if len(users) > 0 {
		return fmt.Sprintf("not allocated: %v", users)
	}
	return ""
}
