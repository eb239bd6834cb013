package control

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	restclient "k8s.io/client-go/rest"

	"berth/control"
)

// priorityLevel is the state of a priority level.
type priorityLevel struct{ waiting, executing, rejected, timedOut int }

// priorityLevel reads the state of a level from the server's debug endpoint. /metrics counts the requests to
// all servers of this process.
func (s *Server) priorityLevel(ctx context.Context, name string) (priorityLevel, error) {
	text, err := s.Client.Discovery().RESTClient().Get().
		AbsPath("/debug/api_priority_and_fairness/dump_priority_levels").DoRaw(ctx)
	if err != nil {
		return priorityLevel{}, err
	}
	scanner := bufio.NewScanner(strings.NewReader(string(text)))
	for scanner.Scan() {
		cells := strings.Split(scanner.Text(), ",")
		if strings.TrimSpace(cells[0]) != name {
			continue
		}
		number := func(i int) int {
			n, invalid := strconv.Atoi(strings.TrimSpace(cells[i]))
			err = errors.Join(err, invalid)
			return n
		}
		level := priorityLevel{number(4), number(5), number(7), number(8)}
		return level, err
	}
	return priorityLevel{}, fmt.Errorf("no priority level %s in %s", name, text)
}

// waitForDefaultLevels waits until the server applies the default objects.
func (s *Server) waitForDefaultLevels(t *testing.T) {
	t.Helper()
	eventually(t, "default flow schemas in use", func() (bool, string) {
		list, err := s.Client.FlowcontrolV1().FlowSchemas().List(t.Context(), metav1.ListOptions{})
		if err != nil {
			return false, err.Error()
		}
		for _, schema := range list.Items {
			if schema.Name != "service-accounts" {
				continue
			}
			for _, c := range schema.Status.Conditions {
				if c.Type == flowcontrolv1.FlowSchemaConditionDangling && c.Status == flowcontrolv1.ConditionFalse {
					_, err := s.priorityLevel(t.Context(), "workload-low")
					return err == nil, fmt.Sprint(err)
				}
			}
		}
		return false, fmt.Sprintf("%d flow schemas", len(list.Items))
	})
}

// noisyAccount is a service account that may create and list ConfigMaps and pods in the namespace default.
type noisyAccount struct {
	s      *Server
	config *restclient.Config
	client kubernetes.Interface
}

func newNoisyAccount(t *testing.T, s *Server) *noisyAccount {
	t.Helper()
	ctx, name := t.Context(), metav1.ObjectMeta{Name: "noisy"}
	core := s.Client.CoreV1()
	if _, err := core.ServiceAccounts(metav1.NamespaceDefault).Create(ctx, &corev1.ServiceAccount{ObjectMeta: name},
		metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Client.RbacV1().Roles(metav1.NamespaceDefault).Create(ctx, &rbacv1.Role{ObjectMeta: name,
		Rules: []rbacv1.PolicyRule{{Verbs: []string{"create", "list"}, APIGroups: []string{""},
			Resources: []string{"configmaps", "pods"}}}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Client.RbacV1().RoleBindings(metav1.NamespaceDefault).Create(ctx, &rbacv1.RoleBinding{
		ObjectMeta: name, RoleRef: rbacv1.RoleRef{Kind: "Role", Name: "noisy", APIGroup: rbacv1.GroupName},
		Subjects: []rbacv1.Subject{{
			Kind: rbacv1.ServiceAccountKind, Name: "noisy", Namespace: metav1.NamespaceDefault}},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	token, err := core.ServiceAccounts(metav1.NamespaceDefault).CreateToken(ctx, "noisy",
		&authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	n := &noisyAccount{s: s, config: restclient.AnonymousClientConfig(s.Config)}
	n.config.QPS, n.config.BearerToken = -1, token.Status.Token
	if n.client, err = kubernetes.NewForConfig(n.config); err != nil {
		t.Fatal(err)
	}
	eventually(t, "permission of the account", func() (bool, string) {
		_, err := n.client.CoreV1().ConfigMaps(metav1.NamespaceDefault).List(ctx, metav1.ListOptions{})
		return err == nil, fmt.Sprint(err)
	})
	return n
}

// slowRequests are requests whose body the client does not send.
type slowRequests struct {
	rejected, other atomic.Int64 // responses with the status 429, and others
	stop            func()       // cancels the requests and waits for them
}

// open starts slow requests.
func (n *noisyAccount) open(t *testing.T, count int) *slowRequests {
	t.Helper()
	client, err := restclient.HTTPClientFor(n.config)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	r := &slowRequests{}
	var all sync.WaitGroup
	for range count {
		all.Go(func() {
			body, end := io.Pipe()
			defer end.Close()
			request, err := http.NewRequestWithContext(ctx, http.MethodPost,
				n.config.Host+"/api/v1/namespaces/default/configmaps", body)
			if err != nil {
				t.Error(err)
				return
			}
			request.Header.Set("Content-Type", "application/json")
			response, err := client.Do(request)
			if err != nil {
				return // canceled
			}
			_ = response.Body.Close()
			if response.StatusCode == http.StatusTooManyRequests {
				r.rejected.Add(1)
			} else {
				r.other.Add(1)
			}
		})
	}
	r.stop = sync.OnceFunc(func() { cancel(); all.Wait() })
	t.Cleanup(r.stop)
	return r
}

// TestFairness: a service account opens 400 slow requests, more than its share of the server. Those that exceed
// its queues are rejected. Meanwhile the heartbeats of a node, the scheduler, a controller and the
// administrator are served. With BERTH_TORTURE the server has its normal limits, the account also lists 10,000
// pods many times, and heartbeats and reads take less than a second.
func TestFairness(t *testing.T) {
	t.Parallel()
	torture := os.Getenv("BERTH_TORTURE") != ""
	s := Start(t, withoutControllers, func(c *control.Config) {
		if !torture {
			c.MaxRequestsInFlight, c.MaxMutatingRequestsInFlight = 40, 20
		}
	})
	s.waitForDefaultLevels(t)
	critical := newCriticalClients(t, s)
	noisy := newNoisyAccount(t, s)
	if torture {
		noisy.startLists(t)
	}
	const count = 400
	slow := noisy.open(t, count)
	limit := s.MaxRequestsInFlight + s.MaxMutatingRequestsInFlight
	eventually(t, "all slow requests at the server", func() (bool, string) {
		level, err := s.priorityLevel(t.Context(), "workload-low")
		rejected := int(slow.rejected.Load())
		return err == nil && level.executing > 0 && level.executing+level.waiting+rejected >= count,
			fmt.Sprintf("%+v, %d rejected, %v", level, rejected, err)
	})
	for range 5 {
		critical.use(t, torture)
	}
	level, err := s.priorityLevel(t.Context(), "workload-low")
	if err != nil || level.executing == 0 || level.executing > limit {
		t.Errorf("got %+v, %v, want at most %d executing", level, err, limit)
	}
	if !torture && level.rejected+level.timedOut == 0 {
		t.Errorf("got %+v, want rejected requests", level)
	}
	if n := slow.other.Load(); n > 0 {
		t.Errorf("%d slow requests got another response than 429", n)
	}
	slow.stop()
	eventually(t, "requests of the account after the slow ones", func() (bool, string) {
		_, err := noisy.client.CoreV1().ConfigMaps(metav1.NamespaceDefault).List(t.Context(), metav1.ListOptions{})
		return err == nil, fmt.Sprint(err)
	})
}

// criticalClients are the clients that no other may delay.
type criticalClients struct {
	admin, node, scheduler, controller kubernetes.Interface
	lease                              *coordinationv1.Lease
}

func newCriticalClients(t *testing.T, s *Server) *criticalClients {
	t.Helper()
	ctx := t.Context()
	c := &criticalClients{
		admin: s.Client, node: s.clientAs(t, "system:node:x", "system:nodes"),
		scheduler: s.clientAs(t, "system:kube-scheduler"),
		controller: s.clientAs(t, "system:serviceaccount:kube-system:replicaset-controller", "system:serviceaccounts",
			"system:serviceaccounts:kube-system"),
	}
	if _, err := c.admin.CoreV1().Nodes().Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "x"}},
		metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "namespace of node leases", func() (ok bool, _ string) {
		var err error
		c.lease, err = c.node.CoordinationV1().Leases(corev1.NamespaceNodeLease).Create(ctx,
			&coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: "x"}}, metav1.CreateOptions{})
		return err == nil, fmt.Sprint(err)
	})
	return c
}

// use sends requests of all clients. With bounded, each must take less than a second.
func (c *criticalClients) use(t *testing.T, bounded bool) {
	t.Helper()
	ctx := t.Context()
	for _, r := range []struct {
		name string
		send func() error
	}{
		{"renewal of a node lease", func() (err error) {
			now := metav1.NowMicro()
			c.lease.Spec.RenewTime = &now
			c.lease, err = c.node.CoordinationV1().Leases(corev1.NamespaceNodeLease).Update(ctx, c.lease,
				metav1.UpdateOptions{})
			return err
		}},
		{"status of a node", func() error {
			_, err := c.node.CoreV1().Nodes().Patch(ctx, "x", types.StrategicMergePatchType,
				[]byte(`{"status": {"phase": "Running"}}`), metav1.PatchOptions{}, "status")
			return err
		}},
		{"read of the administrator", func() error {
			_, err := c.admin.CoreV1().Nodes().Get(ctx, "x", metav1.GetOptions{})
			return err
		}},
		{"read of the scheduler", func() error {
			_, err := c.scheduler.CoreV1().Nodes().Get(ctx, "x", metav1.GetOptions{})
			return err
		}},
		{"read of a controller", func() error {
			_, err := c.controller.AppsV1().ReplicaSets(metav1.NamespaceDefault).List(ctx, metav1.ListOptions{})
			return err
		}},
	} {
		start := time.Now()
		if err := r.send(); err != nil {
			t.Errorf("%s: %v", r.name, err)
		}
		if took := time.Since(start); bounded && took > time.Second {
			t.Errorf("%s took %s", r.name, took)
		}
	}
}
