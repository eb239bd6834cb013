package csi

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
)

// inProcessNode is a built-in driver whose first call fails.
type inProcessNode struct {
	csipb.NodeClient
	mu    sync.Mutex
	calls int
}

func (n *inProcessNode) NodeGetInfo(
	context.Context, *csipb.NodeGetInfoRequest, ...grpc.CallOption,
) (*csipb.NodeGetInfoResponse, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.calls++; n.calls == 1 {
		return nil, errors.New("not ready yet")
	}
	return &csipb.NodeGetInfoResponse{NodeId: "id"}, nil
}

func (m *Manager) has(name string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.drivers[name] != nil
}

func TestBuiltInDriver(t *testing.T) {
	t.Parallel()
	early, later := &inProcessNode{}, &inProcessNode{}
	m := New(Options{RootDir: t.TempDir(), RetryMin: time.Millisecond, BuiltIn: map[string]BuiltIn{
		"early.example.com": {early, "1.13.0", true}, "later.example.com": {later, "1.13.0", false},
	}})
	m.Enable("later.example.com") // not running yet: the next call of Enable registers it
	ctx, stop := context.WithCancel(t.Context())
	var run sync.WaitGroup
	run.Go(func() {
		if err := m.Run(ctx); err != nil {
			t.Error(err)
		}
	})
	defer run.Wait()
	defer stop()
	eventually(t, "the driver that was enabled before", func() bool { return m.has("early.example.com") })
	if m.has("later.example.com") {
		t.Error("a driver that was not enabled is registered")
	}
	for range 3 {
		m.Enable("later.example.com")
	}
	eventually(t, "the driver that is enabled later", func() bool { return m.has("later.example.com") })
	if later.mu.Lock(); later.calls != 2 {
		t.Errorf("%d calls of NodeGetInfo, want one that fails and one that succeeds", later.calls)
	}
	later.mu.Unlock()
	if err := m.Register(ctx, "other.example.com", builtInEndpoint, []string{"1.0.0"}); err == nil {
		t.Error("an unknown built-in driver was registered")
	}
}
