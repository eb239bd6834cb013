package checkpoint

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
)

func nodeValue(t *testing.T, s *Store, key string) string {
	t.Helper()
	b, err := s.NodeValue(key)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func TestNodeValues(t *testing.T) {
	o := options(t)
	s := open(t, o)
	if got := nodeValue(t, s, "devices"); got != "" {
		t.Errorf("a new store has %q", got)
	}
	stop := run(t, s)
	s.PutNodeValue("devices", []byte("one"))
	s.PutNodeValue("other", []byte("x"))
	if err := s.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	before := commits(t, s)
	s.PutNodeValue("devices", []byte("one"))
	if err := s.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := commits(t, s) - before; n != 0 {
		t.Errorf("%d commits without changes", n)
	}
	s.PutNodeValue("devices", []byte("two"))
	s.PutNodeValue("other", nil)
	if err := stop(); err != nil { // makes the last commit
		t.Fatal(err)
	}
	s = open(t, o)
	if got := nodeValue(t, s, "devices") + nodeValue(t, s, "other"); got != "two" {
		t.Errorf("after a reopen: %q", got)
	}
}

func TestNodeValuesSurviveFullDisk(t *testing.T) { // C5
	o := options(t)
	dir := smallDisk(t, "8m")
	o.Path, o.PreallocateBytes = filepath.Join(dir, "berth.db"), -1
	s := open(t, o)
	stop := run(t, s)
	ballast := fill(t, dir)
	s.PutNodeValue("devices", make([]byte, 3<<20)) // more than the preallocated space
	if err := s.Flush(t.Context()); !errors.Is(err, ErrDegraded) {
		t.Errorf("flushed onto a full disk: %v", err)
	}
	if err := os.Remove(ballast); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the store recovers", func() bool { bad, _ := s.Degraded(); return !bad })
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	s = open(t, o)
	if got := nodeValue(t, s, "devices"); len(got) != 3<<20 {
		t.Errorf("%d bytes after a reopen", len(got))
	}
	if err := s.Close(); err != nil { // otherwise the file system stays busy
		t.Fatal(err)
	}
}
