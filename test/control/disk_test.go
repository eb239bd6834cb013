package control

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	authorizationv1 "k8s.io/api/authorization/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	restclient "k8s.io/client-go/rest"

	"berth/control"
	"berth/internal/apiclient"
	"berth/node/registration"
)

// mountDisk mounts a small file system for the test and returns its path.
func mountDisk(t *testing.T) string {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("requires root to mount a file system")
	}
	// Not t.TempDir, which would remove the content of a file system that is still mounted.
	dir, err := os.MkdirTemp("", "berth-control-disk-") //nolint:usetesting // as above
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.Remove(dir) })
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=200m"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		// A process that another test has forked holds all open files until it executes its program.
		err := wait.PollUntilContextTimeout(context.Background(), 10*time.Millisecond, time.Minute, true,
			func(context.Context) (bool, error) {
				err := unix.Unmount(dir, 0)
				if errors.Is(err, unix.EBUSY) {
					return false, nil
				}
				return err == nil, err
			})
		if err != nil {
			t.Errorf("unmount %s: %v", dir, err)
		}
	})
	return dir
}

// TestAlmostFullDisk leaves little space for the store. The server rejects writes with an error that
// names the cause. Reads and deletes work. After space is freed, writes work again.
func TestAlmostFullDisk(t *testing.T) {
	t.Parallel()
	dir := mountDisk(t)
	s := Start(t, func(c *control.Config) { c.DataDir = dir })
	createConfigMap(t, s, "default", configMap("before", "a", "b"))
	node := s.clientAs(t, "system:node:full", "system:nodes")
	createNodeAndPod(t, s, node, "full", "ends")
	for _, owner := range []string{"foreground", "orphan"} {
		withDependent(t, s, owner)
	}
	ballast := filepath.Join(dir, "ballast")
	fillDisk(t, ballast, 30<<20)
	maps := s.Client.CoreV1().ConfigMaps("default")
	write := func(ctx context.Context) error {
		_, err := maps.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{GenerateName: "more-"}},
			metav1.CreateOptions{})
		return err
	}
	err := retryUntil(t, write, func(err error) bool { return err != nil })
	if text := err.Error(); !strings.Contains(text, dir) || !strings.Contains(text, "almost full") ||
		!strings.Contains(text, "writes are rejected") {
		t.Errorf("write with a full disk: got %v", err)
	}
	if got, err := maps.Get(t.Context(), "before", metav1.GetOptions{}); err != nil || got.Data["a"] != "b" {
		t.Errorf("read with a full disk: %v, %v", got, err)
	}
	if err := maps.Delete(t.Context(), "before", metav1.DeleteOptions{}); err != nil {
		t.Errorf("delete with a full disk: %v", err)
	}
	checkWorksWithoutSpace(t, s, node, "full", "ends")
	waitForConfigMapDeletion := func(name string) {
		t.Helper()
		_ = retryUntil(t, func(ctx context.Context) error { return errorOf(maps.Get(ctx, name, metav1.GetOptions{})) },
			apierrors.IsNotFound)
	}
	for owner, policy := range map[string]metav1.DeletionPropagation{"foreground": metav1.DeletePropagationForeground,
		"orphan": metav1.DeletePropagationOrphan} {
		if err := maps.Delete(t.Context(), owner, metav1.DeleteOptions{PropagationPolicy: &policy}); err != nil {
			t.Errorf("delete with propagation %s and a full disk: %v", policy, err)
		}
		waitForConfigMapDeletion(owner)
	}
	waitForConfigMapDeletion("of-foreground")
	if got, err := maps.Get(t.Context(), "of-orphan", metav1.GetOptions{}); err != nil || len(got.OwnerReferences) > 0 {
		t.Errorf("orphan: got owner references %v, want none, %v", got.OwnerReferences, err)
	}
	if err := os.Remove(ballast); err != nil {
		t.Fatal(err)
	}
	_ = retryUntil(t, write, func(err error) bool { return err == nil })
}

// withDependent creates an owner and a dependent that blocks its deletion.
func withDependent(t *testing.T, s *Server, owner string) {
	t.Helper()
	maps := s.Client.CoreV1().ConfigMaps("default")
	o, err := maps.Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: owner}},
		metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	yes := true
	ref := metav1.OwnerReference{APIVersion: "v1", Kind: "ConfigMap", Name: owner, UID: o.UID, BlockOwnerDeletion: &yes}
	if _, err := maps.Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "of-" + owner,
		OwnerReferences: []metav1.OwnerReference{ref}}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// TestFullStore fills the store up to its quota. The server rejects writes with an error that names the
// cause. Deletes and status updates of nodes work, and after deletions the server recovers. Repeated
// updates of one object do not fill the store.
func TestFullStore(t *testing.T) {
	t.Parallel()
	const limit = 8 << 20
	s := Start(t, func(c *control.Config) { c.EtcdQuotaBytes, c.EtcdCompactionInterval = limit, 10*time.Second })
	node := s.clientAs(t, "system:node:full", "system:nodes")
	createNodeAndPod(t, s, node, "full", "ends")
	maps := s.Client.CoreV1().ConfigMaps("default")
	text := strings.Repeat("x", 1<<20-1<<10)
	createConfigMap(t, s, "default", configMap("again", "a", text))
	for i := range 2 * limit >> 20 {
		again := configMap("again", "a", strconv.Itoa(i)+text[:len(text)-8])
		_ = retryUntil(t, func(ctx context.Context) error {
			_, err := maps.Update(ctx, again, metav1.UpdateOptions{})
			return err
		}, func(err error) bool { return err == nil })
	}
	n := 0
	err := retryUntil(t, func(ctx context.Context) error {
		n++
		_, err := maps.Create(ctx, configMap("many-"+strconv.Itoa(n), "a", text), metav1.CreateOptions{})
		return err
	}, func(err error) bool { return err != nil })
	if text := err.Error(); !strings.Contains(text, "is full") || !strings.Contains(text, "writes are rejected") {
		t.Errorf("write with a full store: got %v", err)
	}
	checkWorksWithoutSpace(t, s, node, "full", "ends")
	for i := range n - 1 {
		if err := maps.Delete(t.Context(), "many-"+strconv.Itoa(i+1), metav1.DeleteOptions{}); err != nil {
			t.Errorf("delete with a full store: %v", err)
		}
	}
	_ = retryUntil(t, func(ctx context.Context) error {
		_, err := maps.Create(ctx, configMap("after", "a", text), metav1.CreateOptions{})
		return err
	}, func(err error) bool { return err == nil })
}

// createNodeAndPod creates a Node and its lease with the client of the node, and a pod that is bound to the Node.
func createNodeAndPod(t *testing.T, s *Server, as kubernetes.Interface, node, pod string) {
	t.Helper()
	ctx := t.Context()
	if _, err := as.CoreV1().Nodes().Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}},
		metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: node}}
	if _, err := as.CoordinationV1().Leases(corev1.NamespaceNodeLease).Create(ctx, lease,
		metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	s.Apply(t, fmt.Sprintf(`{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": %q}, "spec": {"nodeName": %q, `+
		`"containers": [{"name": "main", "image": "example/web"}]}}`, pod, node))
}

// checkWorksWithoutSpace checks the operations that work without space: node heartbeats, access reviews,
// and the graceful deletion of a pod with its status updates.
func checkWorksWithoutSpace(t *testing.T, s *Server, as kubernetes.Interface, node, pod string) {
	t.Helper()
	ctx := t.Context()
	patch := func(body string) []byte { return []byte(body) }
	if _, err := as.CoordinationV1().Leases(corev1.NamespaceNodeLease).Patch(ctx, node, types.MergePatchType,
		patch(`{"spec": {"leaseDurationSeconds": 40}}`), metav1.PatchOptions{}); err != nil {
		t.Errorf("update of the node's lease: %v", err)
	}
	if _, err := as.CoreV1().Nodes().PatchStatus(ctx, node, patch(`{"status": {"phase": "Running"}}`)); err != nil {
		t.Errorf("update of the node's status: %v", err)
	}
	restartNode(t, s, node)
	review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{User: "someone",
		ResourceAttributes: &authorizationv1.ResourceAttributes{Verb: "get", Resource: "pods"}}}
	if _, err := as.AuthorizationV1().SubjectAccessReviews().Create(ctx, review, metav1.CreateOptions{}); err != nil {
		t.Errorf("access review: %v", err)
	}
	pods := s.Client.CoreV1().Pods("default")
	if err := pods.Delete(ctx, pod, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if p, err := pods.Get(ctx, pod, metav1.GetOptions{}); err != nil || p.DeletionTimestamp == nil {
		t.Errorf("graceful deletion of the pod: got %+v, %v", p, err)
	}
	if _, err := as.CoreV1().Pods("default").Patch(ctx, pod, types.StrategicMergePatchType,
		patch(`{"status": {"phase": "Succeeded"}}`), metav1.PatchOptions{}, "status"); err != nil {
		t.Errorf("last status update of the pod: %v", err)
	}
	none := int64(0)
	if err := as.CoreV1().Pods("default").Delete(ctx, pod,
		metav1.DeleteOptions{GracePeriodSeconds: &none}); err != nil {
		t.Errorf("final deletion of the pod: %v", err)
	}
	if _, err := pods.Get(ctx, pod, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("get of the deleted pod: got %v, want NotFound", err)
	}
}

// restartNode performs the API calls of a restarted agent. It reads its Node, which it cannot update
// without space, and reports that it is ready.
func restartNode(t *testing.T, s *Server, name string) {
	t.Helper()
	config := restclient.AnonymousClientConfig(s.Config)
	s.withCertificate(t, "system:node:"+name, "system:nodes")(config)
	client, err := apiclient.New(apiclient.Options{Config: config, UserAgent: "test"})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	ctx, stop := context.WithTimeout(t.Context(), 4*time.Minute)
	defer stop()
	received, once := make(chan struct{}), sync.Once{}
	p := registration.New(registration.Options{
		Client: client, HeartbeatClient: client, Name: name, Installation: "here", RegisterNode: true,
		Facts: func(context.Context) registration.Facts {
			return registration.Facts{Labels: map[string]string{"new": "label"}}
		},
		OnNode: func(*corev1.Node) { once.Do(func() { close(received) }) },
	})
	ended := make(chan error, 1)
	go func() { ended <- p.Run(ctx) }()
	select {
	case <-received:
	case <-ctx.Done():
		t.Errorf("agent did not receive Node %s", name)
	}
	_ = retryUntil(t, func(ctx context.Context) error {
		n, err := s.Client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
		if err == nil && !slices.ContainsFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool {
			return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
		}) {
			err = fmt.Errorf("node %s is not ready: %v", name, n.Status.Conditions)
		}
		return err
	}, func(err error) bool { return err == nil })
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// TestFullDisk fills the disk during writes. The server may exit with an error that names the cause. All
// acknowledged writes are stored after a restart.
func TestFullDisk(t *testing.T) {
	t.Parallel()
	p := &Process{DataDir: mountDisk(t), Listen: freeAddress(t), logFile: filepath.Join(t.TempDir(), "log")}
	p.Start(t)
	defer p.stopAndLog(t)
	client, err := p.WaitReady(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	ballast := filepath.Join(p.DataDir, "ballast")
	var acknowledged []string
	for i := range 300 {
		if i == 100 {
			fillDisk(t, ballast, 0)
		}
		c := configMap("c"+strconv.Itoa(i), "a", strings.Repeat("x", 10000))
		if _, err := client.CoreV1().ConfigMaps("default").Create(t.Context(), c, metav1.CreateOptions{}); err != nil {
			break
		}
		acknowledged = append(acknowledged, c.Name)
	}
	select {
	case <-p.done:
		if text, err := p.Wait(t); err == nil || !strings.Contains(text, "no space left on its file system") {
			t.Errorf("server exited with %v:\n%s", err, text)
		}
	case <-time.After(2 * time.Second):
		p.Kill(t)
	}
	if err := os.Remove(ballast); err != nil {
		t.Fatal(err)
	}
	p.Start(t)
	if client, err = p.WaitReady(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, name := range acknowledged {
		if _, err := client.CoreV1().ConfigMaps("default").Get(t.Context(), name, metav1.GetOptions{}); err != nil {
			t.Errorf("acknowledged write is missing: %v", err)
		}
	}
	t.Logf("%d writes were acknowledged", len(acknowledged))
}

// fillDisk writes a file until the given number of bytes is free.
func fillDisk(t *testing.T, path string, left int64) {
	t.Helper()
	var fs unix.Statfs_t
	if err := unix.Statfs(filepath.Dir(path), &fs); err != nil {
		t.Fatal(err)
	}
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for n := int64(fs.Bavail)*fs.Bsize - left; n > 0; n -= 4096 {
		if _, err := f.Write(make([]byte, min(n, 4096))); err != nil {
			return // other processes write too
		}
	}
}

// retryTimeout limits retryUntil. Filling a store takes long on a busy machine.
const retryTimeout = 4 * time.Minute

// retryUntil calls do until accept accepts its error, and returns the error. The test fails after
// retryTimeout.
func retryUntil(t *testing.T, do func(context.Context) error, accept func(error) bool) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), retryTimeout)
	defer cancel()
	for {
		err := do(ctx)
		if accept(err) {
			return err
		}
		if pause(ctx) != nil {
			t.Fatalf("timeout, last error: %v", err)
		}
	}
}

// TestDamagedStore damages the store. The server exits with an error that names the path, and does not
// change any file.
func TestDamagedStore(t *testing.T) {
	t.Parallel()
	for name, file := range map[string]string{
		"the database": filepath.Join("member", "snap", "db"),
		"the log":      filepath.Join("member", "wal", "0000000000000000-0000000000000000.wal"),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := Launch(t)
			if _, err := p.WaitReady(t.Context()); err != nil {
				t.Fatal(err)
			}
			kubectl(t, p, "create", "configmap", "kept")
			p.Stop(t)
			path := filepath.Join(p.DataDir, "etcd", "data", file)
			original := damage(t, path)
			p.Start(t)
			text, err := p.Wait(t)
			if err == nil || !strings.Contains(text, p.DataDir) || !strings.Contains(text, "cannot be opened") ||
				strings.Contains(text, "goroutine ") {
				t.Fatalf("server exited with %v:\n%s", err, text)
			}
			// After the file is restored, the objects still exist.
			if err := os.WriteFile(path, original, 0o600); err != nil {
				t.Fatal(err)
			}
			p.Start(t)
			if _, err := p.WaitReady(t.Context()); err != nil {
				t.Fatal(err)
			}
			kubectl(t, p, "get", "configmap", "kept")
		})
	}
}

// damage overwrites the beginning of a file and returns its original content.
func damage(t *testing.T, path string) []byte {
	t.Helper()
	original, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	broken := append([]byte(strings.Repeat("damage! ", 2048)), original[2048*8:]...)
	if err := os.WriteFile(path, broken, 0o600); err != nil {
		t.Fatal(err)
	}
	return original
}

// kubectl runs kubectl as the administrator. The test fails if kubectl fails.
func kubectl(t *testing.T, p *Process, args ...string) {
	t.Helper()
	if out, err := RunKubectl(t, p.Kubeconfig(), "", args...); err != nil {
		t.Fatalf("kubectl %v: %v\n%s", args, err, out)
	}
}
