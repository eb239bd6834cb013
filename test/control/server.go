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

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	restclient "k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"berth/control"
	"berth/test/hosts"
)

// Server is a control server in this process.
type Server struct {
	*control.Server
	// Config and Client are the administrator's.
	Config     *restclient.Config
	Client     kubernetes.Interface
	Kubeconfig string
	// Namespace is the one that Kubeconfig names.
	Namespace string
	stop      func() error
}

// readyWithin bounds the start of a server on a busy machine.
const readyWithin = 4 * time.Minute

// Start runs a server of the test's own with default settings, changed by the
// functions. A test that writes into one namespace only takes Shared.
func Start(t testing.TB, change ...func(*control.Config)) *Server {
	t.Helper()
	s, err := open(context.WithoutCancel(t.Context()), append([]func(*control.Config){func(c *control.Config) {
		c.DataDir = t.TempDir()
		c.Log = slog.New(slog.NewTextHandler(output{t}, &slog.HandlerOptions{Level: slog.LevelInfo}))
	}}, change...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Stop(t) })
	return s
}

// open starts a server with default settings, changed by the functions, and waits
// until it is ready. Its stop ends it.
func open(ctx context.Context, change ...func(*control.Config)) (*Server, error) {
	c := control.Default()
	c.Listen, c.UnsafeNoFsync = "127.0.0.1:0", true
	for _, f := range change {
		f(&c)
	}
	server, err := control.New(ctx, c)
	if err != nil {
		return nil, fmt.Errorf("make the server: %w", err)
	}
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- server.Run(ctx) }() // ends with stop
	s := &Server{Server: server, Kubeconfig: c.AdminKubeconfig(), Namespace: metav1.NamespaceDefault}
	s.stop = sync.OnceValue(func() error { cancel(); return <-ended })
	select {
	case <-server.Ready():
	case err := <-ended:
		ended <- err
		return nil, fmt.Errorf("the server has ended before it was ready: %w", err)
	case <-time.After(readyWithin):
		return nil, fmt.Errorf("the server is not ready within %s; its end: %v", readyWithin, s.stop()) //nolint:errorlint // nil too
	}
	return s, s.connect()
}

// connect makes the administrator's client.
func (s *Server) connect() (err error) {
	if s.Config, err = clientcmd.BuildConfigFromFlags("", s.Kubeconfig); err != nil {
		return err
	}
	s.Config.QPS = -1
	s.Client, err = kubernetes.NewForConfig(s.Config)
	return err
}

// Stop ends the server and waits for it. The test's Cleanup does it too.
func (s *Server) Stop(t testing.TB) {
	if err := s.stop(); err != nil {
		t.Errorf("the server has ended with an error: %v", err)
	}
}

// Kubectl runs kubectl as the administrator and returns what it writes; the test
// fails when kubectl does.
func (s *Server) Kubectl(t testing.TB, args ...string) string {
	t.Helper()
	out, err := s.TryKubectl(t, "", args...)
	if err != nil {
		t.Fatalf("kubectl %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return out
}

// Apply gives a manifest to kubectl apply. A server's first schema is made when it
// is asked for, which on a busy machine may last longer than kubectl waits.
func (s *Server) Apply(t testing.TB, manifest string, args ...string) string {
	t.Helper()
	const tries = 6
	var out string
	var err error
	for range tries {
		out, err = s.TryKubectl(t, manifest, append([]string{"apply", "-f", "-"}, args...)...)
		if late := strings.Contains(out, "Client.Timeout") || strings.Contains(out, "context deadline exceeded"); err == nil || !late {
			break
		}
	}
	if err != nil {
		t.Fatalf("kubectl apply: %v\n%s\n%s", err, out, manifest)
	}
	return out
}

// TryKubectl runs kubectl with something on its standard input.
func (s *Server) TryKubectl(t testing.TB, input string, args ...string) (string, error) {
	t.Helper()
	return RunKubectl(t, s.Kubeconfig, input, args...)
}

// RunKubectl runs kubectl with a kubeconfig; it answers standard output and
// standard error together.
func RunKubectl(t testing.TB, kubeconfig, input string, args ...string) (string, error) {
	t.Helper()
	program, err := hosts.Kubectl()
	if err != nil {
		t.Fatal(err)
	}
	home := filepath.Dir(kubeconfig)
	cmd := exec.CommandContext(t.Context(), program, append([]string{"--kubeconfig", kubeconfig}, args...)...)
	cmd.Env = append(os.Environ(), "HOME="+home, "KUBECACHEDIR="+filepath.Join(home, "kubecache"))
	cmd.Stdin = strings.NewReader(input)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// output writes the server's log to the test's.
type output struct{ t testing.TB }

func (o output) Write(p []byte) (int, error) {
	o.t.Logf("%s", strings.TrimSuffix(string(p), "\n"))
	return len(p), nil
}
