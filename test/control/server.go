package control

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	restclient "k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"

	"berth/control"
	"berth/test/hosts"
)

// Of the logs of libraries, tests print the errors only: a hundred lines for each server would hide what a test says.
func init() {
	klog.SetSlogLogger(slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError})))
}

// Server is a control server in this process.
type Server struct {
	*control.Server
	// Config and Client are the administrator's.
	Config     *restclient.Config
	Client     kubernetes.Interface
	Kubeconfig string
	// Namespace is the default namespace of Kubeconfig.
	Namespace string
	stop      func() error
	// generateOpenAPI makes the server generate its OpenAPI schema, which it does on the first
	// request. With the race detector on a busy machine this takes longer than kubectl waits.
	generateOpenAPI func() error
}

// readyTimeout limits the startup time of a server on a busy machine.
const readyTimeout = 8 * time.Minute

// nodeMonitorGracePeriod is longer than the default: on a busy machine, an agent that has just started may need more
// than 40 seconds for its first heartbeat, and the Services of the node would lose their endpoints meanwhile.
const nodeMonitorGracePeriod = 5 * time.Minute

// Start starts a server for the test with default settings, changed by the functions. A test that
// writes to a single namespace only should use Shared, which is faster.
func Start(t testing.TB, change ...func(*control.Config)) *Server {
	t.Helper()
	s, err := open(context.WithoutCancel(t.Context()), append([]func(*control.Config){func(c *control.Config) {
		c.DataDir = t.TempDir()
		c.Log = slog.New(slog.NewTextHandler(newTestLogWriter(t), &slog.HandlerOptions{Level: slog.LevelInfo}))
	}}, change...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Stop(t) })
	return s
}

// open starts a server with default settings, changed by the functions, and waits until it is
// ready. It runs until stop is called.
func open(ctx context.Context, change ...func(*control.Config)) (*Server, error) {
	c := control.Default()
	c.Listen, c.UnsafeNoFsync = "127.0.0.1:0", true
	c.OpenAPITTL = time.Hour // all servers of this process share the documents
	c.NodeMonitorGracePeriod = nodeMonitorGracePeriod
	for _, f := range change {
		f(&c)
	}
	server, err := control.New(ctx, c)
	if err != nil {
		return nil, fmt.Errorf("create server: %w", err)
	}
	ctx, cancel := context.WithCancel(ctx)
	exited := make(chan error, 1)
	go func() { exited <- server.Run(ctx) }() // s.stop cancels ctx
	s := &Server{Server: server, Kubeconfig: c.AdminKubeconfig(), Namespace: metav1.NamespaceDefault}
	s.stop = sync.OnceValue(func() error { cancel(); return <-exited })
	select {
	case <-server.Ready():
	case err := <-exited:
		exited <- err
		return nil, fmt.Errorf("server exited before it was ready: %w", err)
	case <-time.After(readyTimeout):
		return nil, fmt.Errorf("server not ready within %s, exit error: %v", readyTimeout,
			s.stop()) //nolint:errorlint // nil too
	}
	return s, s.connect()
}

// connect creates the administrator's client.
func (s *Server) connect() (err error) {
	if s.Config, err = clientcmd.BuildConfigFromFlags("", s.Kubeconfig); err != nil {
		return err
	}
	s.Config.QPS = -1
	s.Client, err = kubernetes.NewForConfig(s.Config)
	s.generateOpenAPI = sync.OnceValue(func() error {
		ctx, cancel := context.WithTimeout(context.Background(), readyTimeout)
		defer cancel()
		var last error
		err := hosts.WaitFor(ctx, "the OpenAPI schema", func() (bool, error) {
			// The server continues to generate the schema after the timeout of a request.
			last = s.Client.Discovery().RESTClient().Get().AbsPath("/openapi/v3").Do(ctx).Error()
			return last == nil, nil
		})
		if err != nil {
			return fmt.Errorf("%w: %w", err, last)
		}
		return nil
	})
	return err
}

// Stop stops the server and waits for it. The test's Cleanup does so too.
func (s *Server) Stop(t testing.TB) {
	if err := s.stop(); err != nil {
		t.Errorf("server exited with an error: %v", err)
	}
}

// Kubectl runs kubectl as the administrator and returns its output. The test fails if kubectl
// fails.
func (s *Server) Kubectl(t testing.TB, args ...string) string {
	t.Helper()
	out, err := s.TryKubectl(t, "", args...)
	if err != nil {
		t.Fatalf("kubectl %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return out
}

// Apply runs kubectl apply.
func (s *Server) Apply(t testing.TB, manifest string, args ...string) string {
	t.Helper()
	if err := s.generateOpenAPI(); err != nil {
		t.Fatal(err)
	}
	out, err := s.TryKubectl(t, manifest, append([]string{"apply", "--validate=false", "-f", "-"}, args...)...)
	if err != nil {
		t.Fatalf("kubectl apply: %v\n%s\n%s", err, out, manifest)
	}
	return out
}

// TryKubectl runs kubectl with standard input.
func (s *Server) TryKubectl(t testing.TB, input string, args ...string) (string, error) {
	t.Helper()
	return RunKubectl(t, s.Kubeconfig, input, args...)
}

// RunKubectl runs kubectl with a kubeconfig and returns its combined output.
func RunKubectl(t testing.TB, kubeconfig, input string, args ...string) (string, error) {
	t.Helper()
	program, err := hosts.Kubectl()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), program, append([]string{"--kubeconfig", kubeconfig}, args...)...)
	cmd.Env = hosts.KubectlEnv(filepath.Dir(kubeconfig))
	cmd.Stdin = strings.NewReader(input)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// WaitForBootstrapToken waits until the server accepts a new bootstrap token. It looks tokens up in a cache.
func (s *Server) WaitForBootstrapToken(t testing.TB, token string) {
	t.Helper()
	review := &authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: token}}
	var last error
	err := hosts.WaitFor(t.Context(), "the server to accept a bootstrap token", func() (bool, error) {
		var r *authenticationv1.TokenReview
		r, last = s.Client.AuthenticationV1().TokenReviews().Create(t.Context(), review, metav1.CreateOptions{})
		return last == nil && r.Status.Authenticated, nil
	})
	if err != nil {
		t.Fatalf("%v: %v", err, last)
	}
}

// testLogWriter writes the server's log to the test log. It drops what requests that the server has given up on
// log after the test: the testing package would panic.
type testLogWriter struct {
	mu sync.Mutex
	t  testing.TB // nil after the test
}

// newTestLogWriter returns a writer to the log of t. It drops lines after the cleanups that are registered later.
func newTestLogWriter(t testing.TB) *testLogWriter {
	o := &testLogWriter{t: t}
	t.Cleanup(func() {
		o.mu.Lock()
		defer o.mu.Unlock()
		o.t = nil
	})
	return o
}

func (o *testLogWriter) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.t != nil {
		o.t.Logf("%s", strings.TrimSuffix(string(p), "\n"))
	}
	return len(p), nil
}
