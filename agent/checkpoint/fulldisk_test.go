package checkpoint

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"
)

// smallDisk mounts a file system that can be filled.
func smallDisk(t *testing.T, size string) string {
	t.Helper()
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size="+size+",mode=0700"); err != nil {
		t.Fatalf("mount a small tmpfs (needs root): %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Errorf("unmount %s: %v", dir, err)
		}
	})
	return dir
}

// fill uses all free space. Removing the returned file frees it.
func fill(t *testing.T, dir string) string {
	t.Helper()
	path := filepath.Join(dir, "ballast")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range []int{1 << 16, 1 << 12, 1} {
		for err = nil; err == nil; {
			_, err = f.Write(make([]byte, n))
		}
		if !errors.Is(err, unix.ENOSPC) {
			t.Fatal(err)
		}
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	return path
}

func big(name string) Record {
	r := record(name)
	r.Timeline = bytes.Repeat([]byte("x"), 64<<10)
	return r
}

func TestFullDiskKeepsRecordsInMemory(t *testing.T) { // C5
	t.Parallel()
	o := options(t)
	dir := smallDisk(t, "2m")
	o.Path, o.PreallocateBytes = filepath.Join(dir, "berth.db"), 512<<10
	s := open(t, o)
	stop := run(t, s)
	if err := s.Sync(t.Context(), "first", record("first")); err != nil {
		t.Fatal(err)
	}
	ballast := fill(t, dir)
	var err error
	n := 0
	for ; err == nil && n < 100; n++ {
		uid := types.UID(fmt.Sprint(n))
		err = s.Sync(t.Context(), uid, big(string(uid)))
	}
	if !errors.Is(err, ErrDegraded) || n < 2 {
		t.Fatalf(
			"%v after %d records of 64 KiB, want some to fit into the preallocated space, and then a failure",
			err,
			n,
		)
	}
	if bad, why := s.Degraded(); !bad || !strings.Contains(why, "no space left") {
		t.Errorf("degraded: %v, %q", bad, why)
	}
	began := time.Now()
	s.Put("late", record("late"))
	s.Delete("first")
	if err := s.Sync(t.Context(), "later", record("later")); !errors.Is(err, ErrDegraded) {
		t.Errorf("sync on a full disk: %v", err)
	}
	if d := time.Since(began); d > 30*time.Second { // it does not wait for the disk
		t.Errorf("Sync took %s on a full disk", d)
	}
	if err := os.Remove(ballast); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the store recovers", func() bool { bad, _ := s.Degraded(); return !bad })
	if err := s.Sync(t.Context(), "last", record("last")); err != nil {
		t.Fatal(err)
	}
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	s = open(t, o)
	got := load(t, s)
	if err := s.Close(); err != nil { // otherwise the file system stays busy
		t.Fatal(err)
	}
	want := []types.UID{"late", "later", "last"}
	for i := range n {
		want = append(want, types.UID(fmt.Sprint(i)))
	}
	for _, uid := range want {
		if _, ok := got[uid]; !ok {
			t.Errorf("record %s is lost", uid)
		}
	}
	if _, ok := got["first"]; ok || len(got) != len(want) {
		t.Errorf("%d records, want %d without the deleted one", len(got), len(want))
	}
}

func TestOpenOnFullDisk(t *testing.T) { // C5
	t.Parallel()
	o := options(t)
	dir := smallDisk(t, "1m")
	o.Path = filepath.Join(dir, "berth.db")
	ballast := fill(t, dir)
	s, quarantined, err := Open(o)
	if err != nil || quarantined != nil {
		t.Fatalf("open: %v, quarantined: %v", err, quarantined)
	}
	if bad, _ := s.Degraded(); !bad {
		t.Error("not degraded")
	}
	if got := load(t, s); len(got) != 0 {
		t.Errorf("%d records", len(got))
	}
	stop := run(t, s)
	s.Put("a", record("a"))
	if err := os.Remove(ballast); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the store recovers", func() bool { bad, _ := s.Degraded(); return !bad })
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	s = open(t, o)
	if _, ok := load(t, s)["a"]; !ok {
		t.Error("the record is lost")
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}

func TestRunReportsLostRecordsOnFullDisk(t *testing.T) {
	t.Parallel()
	o := options(t)
	dir := smallDisk(t, "1m")
	o.Path = filepath.Join(dir, "berth.db")
	fill(t, dir)
	s, _, err := Open(o)
	if err != nil {
		t.Fatal(err)
	}
	stop := run(t, s)
	s.Put("a", record("a"))
	if err := stop(); !errors.Is(err, ErrDegraded) || !strings.Contains(err.Error(), "1 unwritten records are lost") {
		t.Errorf("got %v", err)
	}
}

func TestOpenOnReadOnlyDisk(t *testing.T) {
	t.Parallel()
	o := options(t)
	dir := smallDisk(t, "1m")
	o.Path = filepath.Join(dir, "state", "berth.db")
	if err := unix.Mount("", dir, "", unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
		t.Fatal(err)
	}
	s, quarantined, err := Open(o)
	if err != nil || quarantined != nil {
		t.Fatalf("open: %v, quarantined: %v", err, quarantined)
	}
	if bad, why := s.Degraded(); !bad || !strings.Contains(why, "read-only") {
		t.Errorf("degraded: %v, %q", bad, why)
	}
}
