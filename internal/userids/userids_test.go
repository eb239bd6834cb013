package userids

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

type testNode struct{ root, etc string }

func newTestNode(t *testing.T) testNode {
	t.Helper()
	p := testNode{t.TempDir(), t.TempDir()}
	return p
}

func (p testNode) pod(t *testing.T, uid string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Join(p.root, "pods", uid), 0o750); err != nil {
		t.Fatal(err)
	}
}

func (p testNode) open(t *testing.T, pods int) *Allocator {
	t.Helper()
	ids, err := New(Options{RootDir: p.root, EtcDir: p.etc, MaxPods: pods})
	if err != nil {
		t.Fatal(err)
	}
	return ids
}

func (p testNode) write(t *testing.T, name, text string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(p.etc, name), []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

func first(t *testing.T, ids *Allocator, uid string) uint32 {
	t.Helper()
	n, err := ids.Allocate(uid)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func TestAllocateUniqueRanges(t *testing.T) {
	t.Parallel()
	p := newTestNode(t)
	ids := p.open(t, 8)
	var wg sync.WaitGroup
	got := make([]uint32, 8)
	for i := range got {
		uid := fmt.Sprint("pod-", i)
		p.pod(t, uid)
		wg.Go(func() {
			n, err := ids.Allocate(uid)
			if err != nil {
				t.Error(err)
			}
			got[i] = n
		})
	}
	wg.Wait()
	seen := map[uint32]bool{}
	for _, n := range got {
		if n < PerPod || n%PerPod != 0 || seen[n] {
			t.Errorf("range %d is allocated twice: %v", n, got)
		}
		seen[n] = true
	}
	p.pod(t, "ninth")
	if _, err := ids.Allocate("ninth"); err == nil ||
		!strings.Contains(err.Error(), "all 8 ranges of user IDs are allocated") {
		t.Errorf("ninth of 8 ranges: %v", err)
	}
	if err := os.RemoveAll(filepath.Join(p.root, "pods", "pod-3")); err != nil {
		t.Fatal(err)
	}
	if n := first(t, ids, "ninth"); n != got[3] {
		t.Errorf("want freed range %d, got %d", got[3], n)
	}
}

func TestAllocateIsStable(t *testing.T) {
	t.Parallel()
	p := newTestNode(t)
	p.pod(t, "a")
	p.pod(t, "b")
	before := p.open(t, 110)
	a, b := first(t, before, "a"), first(t, before, "b")
	after := p.open(t, 110)
	if first(t, after, "b") != b || first(t, after, "a") != a || a == b {
		t.Errorf("got ranges a %d, b %d", a, b)
	}
	text, err := os.ReadFile(filepath.Join(p.root, "pods", "a", "userns"))
	want := `{"uidMappings":[{"hostId":65536,"containerId":0,"length":65536}],` +
		`"gidMappings":[{"hostId":65536,"containerId":0,"length":65536}]}`
	if err != nil || string(text) != want {
		t.Errorf("got %s (%v), want the kubelet's format %s", text, err, want)
	}
}

func TestUnreadableFileIsNamedInError(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"", "{", "{}",
		`{"uidMappings":[{"hostId":1,"length":65536}],"gidMappings":[{"hostId":1,"length":65536}]}`} {
		p := newTestNode(t)
		p.pod(t, "torn")
		p.pod(t, "other")
		file := filepath.Join(p.root, "pods", "torn", "userns")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		ids := p.open(t, 110)
		for _, uid := range []string{"torn", "other"} {
			if _, err := ids.Allocate(uid); err == nil || !strings.Contains(err.Error(), file) {
				t.Errorf("%s beside %q: %v", uid, text, err)
			}
		}
	}
	p := newTestNode(t)
	if _, err := p.open(t, 1).Allocate("../x"); err == nil {
		t.Error("path was accepted as UID")
	}
	if _, err := p.open(t, 1).Allocate("gone"); err == nil {
		t.Error("got IDs for a pod without a directory")
	}
}

func TestSubordinateIDs(t *testing.T) {
	t.Parallel()
	const good = "root:1:2\nkubelet:131072:327680\n"
	for _, c := range []struct{ uids, gids, wantErr string }{
		{good, good, ""},
		{"other:1:2\n", "", ""},
		{good, "", "in subuid and none in subgid"},
		{"kubelet:131072:x\n", good, `"kubelet:131072:x" is not a range`},
		{"kubelet:131072:0\n", good, "is not a range"},
		{good + good, good, "more than one range"},
		{"kubelet:65535:327680", "kubelet:65535:327680", "must be at least 65536"},
		{"kubelet:65537:327680", "kubelet:65537:327680", "multiples of 65536"},
		{"kubelet:65536:131072", "kubelet:65536:131072", "sufficient for 2 pods"},
		{"kubelet:4294901760:327680", "kubelet:4294901760:327680", "exceed the range"},
	} {
		p := newTestNode(t)
		p.write(t, "subuid", c.uids)
		p.write(t, "subgid", c.gids)
		ids, err := New(Options{RootDir: p.root, EtcDir: p.etc, MaxPods: 5})
		if c.wantErr != "" {
			if err == nil || !strings.Contains(err.Error(), c.wantErr) {
				t.Errorf("%q and %q: got %v, want %s", c.uids, c.gids, err, c.wantErr)
			}
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		p.pod(t, "a")
		want := uint32(PerPod)
		if c.uids == good {
			want = 2 * PerPod
		}
		if n := first(t, ids, "a"); n != want {
			t.Errorf("%q: got %d, want %d", c.uids, n, want)
		}
	}
}

// FuzzFile checks that any content of a pod's file is either an error or a valid range.
func FuzzFile(f *testing.F) {
	f.Add([]byte(`{"uidMappings":[{"hostId":65536,"length":65536}],"gidMappings":[{"hostId":65536,"length":65536}]}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		p := newTestNode(t)
		p.pod(t, "a")
		if err := os.WriteFile(filepath.Join(p.root, "pods", "a", "userns"), text, 0o600); err != nil {
			t.Fatal(err)
		}
		n, err := p.open(t, 1).Allocate("a")
		if err == nil && (n < PerPod || n%PerPod != 0 || !json.Valid(text)) {
			t.Errorf("got %d from %q", n, text)
		}
	})
}
