package checkpoint

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
)

func noted(t *testing.T, s *Store, key string) string {
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
	if got := noted(t, s, "devices"); got != "" {
		t.Errorf("a fresh store has %q", got)
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
		t.Errorf("%d commits of what is there already", n)
	}
	s.PutNodeValue("devices", []byte("two"))
	s.PutNodeValue("other", nil)
	if err := stop(); err != nil { // the last commit is made then
		t.Fatal(err)
	}
	s = open(t, o)
	if got := noted(t, s, "devices") + noted(t, s, "other"); got != "two" {
		t.Errorf("the next life finds %q", got)
	}
}

func TestNodeValuesSurviveFullDisk(t *testing.T) { // C5
	o := options(t)
	dir := smallDisk(t, "8m")
	o.Path, o.PreallocateBytes = filepath.Join(dir, "berth.db"), -1
	s := open(t, o)
	stop := run(t, s)
	ballast := fill(t, dir)
	s.PutNodeValue("devices", make([]byte, 3<<20)) // far more than the file has room for
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
	if got := noted(t, s, "devices"); len(got) != 3<<20 {
		t.Errorf("%d bytes came back", len(got))
	}
	if err := s.Close(); err != nil { // or the file system stays busy
		t.Fatal(err)
	}
}
