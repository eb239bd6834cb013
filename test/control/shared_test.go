package control

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"

	"berth/control"
	"berth/test/hosts"
)

// sharedServer is a server that several tests share, each with its own namespace. Starting a server
// takes longer than most tests.
type sharedServer struct {
	start func() (*Server, error)
	dir   string
	log   logBuffer

	mu   sync.Mutex
	last int // number of the last namespace
}

// The shared servers: one with all controllers, and one without. See also sharedTwoNodes.
var (
	sharedDefault = newSharedServer()
	sharedPassive = newSharedServer(withoutControllers)
)

func newSharedServer(change ...func(*control.Config)) *sharedServer {
	c := &sharedServer{}
	c.start = sync.OnceValues(func() (*Server, error) {
		var err error
		if err = removeStaleDirs(); err != nil {
			return nil, err
		}
		if c.dir, err = os.MkdirTemp("", fmt.Sprintf(sharedDir, os.Getpid())); err != nil {
			return nil, err
		}
		return open(context.Background(), func(config *control.Config) {
			config.DataDir = c.dir
			config.Log = slog.New(slog.NewTextHandler(&c.log, &slog.HandlerOptions{Level: slog.LevelInfo}))
			for _, f := range change {
				f(config)
			}
		})
	})
	return c
}

// sharedDir is the pattern of the directories of shared servers; the number is the ID of the test process.
const sharedDir = "berth-control-test-%d-*"

// removeStaleDirs removes the directories of test processes that were killed.
func removeStaleDirs() error {
	dirs, err := filepath.Glob(filepath.Join(os.TempDir(), "berth-control-test-*"))
	if err != nil {
		return err
	}
	for _, dir := range dirs {
		var pid int
		if n, _ := fmt.Sscanf(filepath.Base(dir), "berth-control-test-%d-", &pid); n != 1 {
			continue
		}
		if _, err := os.Stat(fmt.Sprintf("/proc/%d", pid)); os.IsNotExist(err) {
			if err := os.RemoveAll(dir); err != nil {
				return err
			}
		}
	}
	return nil
}

// Shared returns a server with default settings that is shared with other tests. The test must
// write only to its Namespace, or to objects with unique names.
func Shared(t testing.TB) *Server { return sharedDefault.withNamespace(t) }

// SharedWithoutControllers is like Shared, with a server without controllers. See withoutControllers.
func SharedWithoutControllers(t testing.TB) *Server { return sharedPassive.withNamespace(t) }

// withNamespace returns the server with a new default namespace.
func (c *sharedServer) withNamespace(t testing.TB) *Server {
	t.Helper()
	server, err := c.start()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("log of the shared server for all tests:\n%s", c.log.String())
		}
	})
	c.mu.Lock()
	c.last++
	s := *server
	s.Namespace = fmt.Sprintf("test-%d", c.last)
	c.mu.Unlock()
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: s.Namespace}}
	if _, err := s.Client.CoreV1().Namespaces().Create(t.Context(), namespace, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	kubeconfig, err := clientcmd.LoadFromFile(server.Kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	kubeconfig.Contexts[kubeconfig.CurrentContext].Namespace = s.Namespace
	s.Kubeconfig = filepath.Join(c.dir, s.Namespace+".kubeconfig")
	if err := clientcmd.WriteToFile(*kubeconfig, s.Kubeconfig); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the default service account of "+s.Namespace, func() (bool, string) {
		_, err := s.Client.CoreV1().ServiceAccounts(s.Namespace).Get(t.Context(), "default", metav1.GetOptions{})
		return err == nil, fmt.Sprint(err)
	})
	return &s
}

// stop stops the server, if it was started, and removes its directory.
func (c *sharedServer) stop() error {
	if c.dir == "" {
		return nil
	}
	if server, err := c.start(); err == nil {
		if err := server.stop(); err != nil {
			return fmt.Errorf("shared server exited with an error: %w\n%s", err, c.log.String())
		}
	}
	return os.RemoveAll(c.dir)
}

// stopShared stops the shared servers and returns the number of servers that failed.
func stopShared() (failed int) {
	for _, c := range []*sharedServer{sharedDefault, sharedPassive, sharedTwoNodes} {
		if err := c.stop(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			failed++
		}
		if denied := c.log.deniedSystemUser(); denied != "" {
			fmt.Fprintln(os.Stderr, "a default role lacks a permission:", denied)
			failed++
		}
	}
	return failed
}

// logBuffer keeps the end of a log. It is safe for concurrent use.
type logBuffer struct {
	mu     sync.Mutex
	buffer bytes.Buffer
	denied string // the first line about a request of a controller or of the scheduler that RBAC denied
}

// maxLogBytes limits the size of a logBuffer, apart from the last write.
const maxLogBytes = 256 << 10

// Write appends to the buffer. Above maxLogBytes, it drops the older half first.
func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.buffer.Len() > maxLogBytes {
		l.buffer.Next(maxLogBytes / 2)
	}
	if l.denied == "" && deniedSystemUser.Match(p) {
		l.denied = string(p)
	}
	return l.buffer.Write(p)
}

func (l *logBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Clone(l.buffer.String())
}

// deniedSystemUser matches a log line about a request that RBAC denied to a controller or the scheduler.
var deniedSystemUser = regexp.MustCompile(
	`User \\?"system:(serviceaccount:kube-system:|kube-)[a-z-]*\\?" cannot `)

func (l *logBuffer) deniedSystemUser() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.denied
}

func TestMain(m *testing.M) {
	hosts.SetDefaultParallelism(2)
	code := m.Run()
	if failed := stopShared(); code == 0 {
		code = failed
	}
	os.Exit(code)
}
