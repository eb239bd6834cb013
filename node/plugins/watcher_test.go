package plugins

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

// TestDecide lets sockets come, go and be replaced at random, and registrations end with and without errors. A plugin
// is registered only with its current socket, at most once at a time, and in the end exactly those with a socket are.
func TestDecide(t *testing.T) {
	t.Parallel()
	for seed := range uint64(300) {
		r := rand.New(rand.NewPCG(seed, 1))
		sockets, plugins := map[string]socketID{}, map[string]pluginState{}
		registered := map[string]socketID{} // with the handlers
		now := time.Unix(1000, 0)
		sync := func() steps {
			s := decide(sockets, plugins, now)
			for _, path := range s.Deregister {
				if !plugins[path].Registered {
					t.Fatalf("seed %d: deregistered twice", seed)
				}
				delete(registered, path)
				delete(plugins, path)
			}
			for _, path := range s.Forget {
				if plugins[path].Busy || plugins[path].Registered {
					t.Fatalf("seed %d: forgot a plugin in use", seed)
				}
				delete(plugins, path)
			}
			for _, path := range s.Register {
				if plugins[path].Busy || plugins[path].Registered {
					t.Fatalf("seed %d: registered twice", seed)
				}
				plugins[path] = pluginState{ID: sockets[path], Busy: true}
			}
			return s
		}
		end := func(path string, err bool) {
			p := plugins[path]
			p.Busy = false
			if p.Registered = !err; err {
				p.RetryAt = now.Add(time.Second)
			} else {
				registered[path] = p.ID
			}
			plugins[path] = p
		}
		for range 60 {
			path := string(rune('a' + r.IntN(4)))
			switch r.IntN(4) {
			case 0:
				sockets[path] = socketID{Inode: r.Uint64()}
			case 1:
				delete(sockets, path)
			case 2:
				if plugins[path].Busy {
					end(path, r.IntN(2) == 0)
				}
			case 3:
				now = now.Add(time.Second)
			}
			sync()
		}
		for range 10 {
			now = now.Add(time.Minute)
			for path, p := range plugins {
				if p.Busy {
					end(path, false)
				}
			}
			sync()
		}
		if !maps.Equal(registered, sockets) {
			t.Fatalf("seed %d: registered %v, sockets %v", seed, registered, sockets)
		}
		if s := decide(sockets, plugins, now); len(s.Register)+len(s.Deregister)+len(s.Forget)+len(s.Cancel) > 0 ||
			!s.Next.IsZero() {
			t.Fatalf("seed %d: steps %+v at the end", seed, s)
		}
	}
}

// recorder is a handler that records its calls.
type recorder struct {
	mu     sync.Mutex
	calls  []string
	refuse error
}

func (r *recorder) Register(ctx context.Context, name, endpoint string, versions []string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.calls = append(r.calls, fmt.Sprintf("register %s %s %v", name, filepath.Base(endpoint), versions))
	return r.refuse
}

func (r *recorder) Deregister(name, _ string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.calls = append(r.calls, "deregister "+name)
}

func (r *recorder) wait(t *testing.T, want ...string) {
	t.Helper()
	waitFor(t, func() string {
		r.mu.Lock()
		defer r.mu.Unlock()
		if slices.Equal(r.calls, want) {
			return ""
		}
		return fmt.Sprintf("got calls %q, want %q", r.calls, want)
	})
}

func waitFor(t *testing.T, problem func() string) {
	t.Helper()
	deadline := time.Now().Add(20 * time.Second)
	for problem() != "" {
		if time.Now().After(deadline) {
			t.Fatal(problem())
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// testPlugin is a plugin with a registration socket.
type testPlugin struct {
	registerapi.UnimplementedRegistrationServer
	info *registerapi.PluginInfo
	hang chan struct{} // GetInfo waits until it is closed; nil: it does not wait

	mu     sync.Mutex
	status []string
}

func (p *testPlugin) GetInfo(ctx context.Context, _ *registerapi.InfoRequest) (*registerapi.PluginInfo, error) {
	if p.hang != nil {
		select {
		case <-p.hang:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	return p.info, nil
}

func (p *testPlugin) NotifyRegistrationStatus(
	_ context.Context, s *registerapi.RegistrationStatus,
) (*registerapi.RegistrationStatusResponse, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.status = append(p.status, fmt.Sprint(s.GetPluginRegistered(), s.GetError()))
	return &registerapi.RegistrationStatusResponse{}, nil
}

func (p *testPlugin) waitStatus(t *testing.T, want string) {
	t.Helper()
	waitFor(t, func() string {
		p.mu.Lock()
		defer p.mu.Unlock()
		if slices.ContainsFunc(p.status, func(s string) bool { return strings.Contains(s, want) }) {
			return ""
		}
		return fmt.Sprintf("got status %q, want %q", p.status, want)
	})
}

// start serves the plugin. The returned function stops it and removes its socket.
func (p *testPlugin) start(t *testing.T, path string) (stop func()) {
	t.Helper()
	ln, err := new(net.ListenConfig).Listen(t.Context(), "unix", path)
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer()
	registerapi.RegisterRegistrationServer(s, p)
	go func() { _ = s.Serve(ln) }()
	t.Cleanup(s.Stop)
	return s.Stop
}

// startWatcher runs a watcher in a new directory.
func startWatcher(t *testing.T, handlers map[string]Handler) (dir string) {
	t.Helper()
	top, err := os.MkdirTemp("", "plugins") // the path of a socket must be short
	if err != nil {
		t.Fatal(err)
	}
	dir = filepath.Join(top, "registry")
	w := New(Options{Dir: dir, Handlers: handlers, RetryMin: 10 * time.Millisecond, RescanInterval: time.Hour})
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = w.Run(ctx)
	}()
	t.Cleanup(func() {
		stop()
		<-done
		_ = os.RemoveAll(top)
	})
	waitFor(t, func() string {
		if _, err := os.Stat(dir); err != nil {
			return err.Error()
		}
		return ""
	})
	return dir
}

func TestWatcher(t *testing.T) {
	t.Parallel()
	drivers, devices := &recorder{}, &recorder{}
	dir := startWatcher(t, map[string]Handler{CSIPlugin: drivers, DevicePlugin: devices})
	hanging := &testPlugin{hang: make(chan struct{})}
	hanging.start(t, filepath.Join(dir, "hanging.sock"))
	driver := &testPlugin{info: &registerapi.PluginInfo{Type: CSIPlugin, Name: "d", Endpoint: "/run/csi.sock",
		SupportedVersions: []string{"1.0.0"}}}
	stop := driver.start(t, filepath.Join(dir, "d-reg.sock"))
	drivers.wait(t, "register d csi.sock [1.0.0]")
	driver.waitStatus(t, "true")
	// In a new directory, without an endpoint of its own.
	sub := filepath.Join(dir, "sub")
	if err := os.Mkdir(sub, 0o755); err != nil {
		t.Fatal(err)
	}
	device := &testPlugin{info: &registerapi.PluginInfo{Type: DevicePlugin, Name: "example.com/gpu",
		SupportedVersions: []string{"v1beta1"}}}
	device.start(t, filepath.Join(sub, "gpu.sock"))
	devices.wait(t, "register example.com/gpu gpu.sock [v1beta1]")

	stop()
	drivers.wait(t, "register d csi.sock [1.0.0]", "deregister d")
	driver.start(t, filepath.Join(dir, "d-reg.sock"))
	drivers.wait(t, "register d csi.sock [1.0.0]", "deregister d", "register d csi.sock [1.0.0]")

	unknown := &testPlugin{info: &registerapi.PluginInfo{Type: "Toaster", Name: "x"}}
	unknown.start(t, filepath.Join(dir, "x.sock"))
	unknown.waitStatus(t, "no handler registered for plugin type: Toaster")
}

// TestFailedRegistrationIsRepeated checks that a plugin receives the error of its registration, and is registered
// later.
func TestFailedRegistrationIsRepeated(t *testing.T) {
	t.Parallel()
	r := &recorder{refuse: errors.New("not today")}
	dir := startWatcher(t, map[string]Handler{CSIPlugin: r})
	p := &testPlugin{info: &registerapi.PluginInfo{Type: CSIPlugin, Name: "d"}}
	p.start(t, filepath.Join(dir, "d.sock"))
	p.waitStatus(t, "not today")
	r.mu.Lock()
	r.refuse = nil
	r.mu.Unlock()
	p.waitStatus(t, "true")
}
