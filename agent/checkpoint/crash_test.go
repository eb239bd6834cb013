package checkpoint

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"
)

// childPath is the environment variable that makes this test binary write to the store at this path
// until it is killed.
const childPath = "BERTH_CHECKPOINT_CHILD"

func TestMain(m *testing.M) {
	RunCheckProcess()
	if path := os.Getenv(childPath); path != "" {
		if err := child(path); err != nil {
			fmt.Println("error", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// child writes records of a few pods in a loop and prints what was synced.
func child(path string) error {
	s, quarantined, err := Open(Options{Path: path, CommitDelay: time.Millisecond})
	if err != nil || quarantined != nil {
		return fmt.Errorf("open: %w, quarantined: %v", err, quarantined)
	}
	go func() { _ = s.Run(context.Background()) }() // ends with the process
	fmt.Println("ready")
	for i := 1; ; i++ {
		uid := strconv.Itoa(i % 7)
		r := record(uid)
		r.BootID = strconv.Itoa(i)
		r.Timeline = []byte(strings.Repeat("x", i*37%20000))
		s.Put(types.UID("p"+uid), r)
		if i%13 == 0 {
			s.Delete(types.UID("p" + strconv.Itoa(i%5)))
		}
		if err := s.Sync(context.Background(), types.UID(uid), r); err != nil {
			return err
		}
		fmt.Println("synced", uid, i)
	}
}

func TestStoreSurvivesKillDuringWrites(t *testing.T) { // C2
	t.Parallel()
	path := filepath.Join(t.TempDir(), "berth.db")
	rnd := rand.New(rand.NewPCG(1, 2))
	synced := map[types.UID]int{}
	for round := range 12 {
		killChild(t, path, 1+rnd.IntN(40), synced)
		s, quarantined, err := Open(Options{Path: path})
		if err != nil || quarantined != nil {
			t.Fatalf("round %d: %v, quarantined: %v", round, err, quarantined)
		}
		got := load(t, s)
		for uid, least := range synced {
			n, err := strconv.Atoi(got[uid].BootID)
			if err != nil || n < least {
				t.Errorf(
					"round %d: record %s is from write %d (%v), and write %d was synced",
					round,
					uid,
					n,
					err,
					least,
				)
			}
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		clear(synced) // the next child starts at 1
	}
}

// killChild lets a child sync a number of records, kills it, and records the newest synced write of
// each record.
func killChild(t *testing.T, path string, writes int, synced map[types.UID]int) {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), exe)
	cmd.Env = append(os.Environ(), childPath+"="+path)
	cmd.SysProcAttr = &unix.SysProcAttr{Pdeathsig: unix.SIGKILL}
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	for lines := bufio.NewScanner(out); lines.Scan(); {
		var uid string
		var n int
		if _, err := fmt.Sscanf(lines.Text(), "synced %s %d", &uid, &n); err != nil {
			if lines.Text() != "ready" {
				t.Errorf("child: %s", lines.Text())
			}
			continue
		}
		synced[types.UID(uid)] = n
		if writes--; writes == 0 {
			if err := cmd.Process.Kill(); err != nil {
				t.Error(err)
			}
		}
	}
	if err := cmd.Wait(); err == nil {
		t.Error("the child was not killed")
	}
	if writes > 0 {
		t.Fatal("the child exited")
	}
}

// filled returns the content of a store with branch pages and overflow pages.
func filled(t *testing.T) []byte {
	t.Helper()
	o := options(t)
	o.PreallocateBytes = -1
	s := open(t, o)
	stop := run(t, s)
	for i := range 60 {
		r := record(fmt.Sprint(i))
		r.Timeline = []byte(strings.Repeat("x", 200*i))
		s.Put(types.UID(fmt.Sprint(i)), r)
		if i%7 == 0 {
			if err := s.Sync(t.Context(), "last", r); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(o.Path)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// reopen opens a store with the given content, and reports whether it is intact. Otherwise it must
// have been quarantined and replaced by an empty store.
func reopen(t *testing.T, dir, what string, content []byte) (intact bool) {
	t.Helper()
	path := filepath.Join(dir, "berth.db")
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
	s, quarantined, err := Open(Options{Path: path, PreallocateBytes: -1})
	if err != nil {
		t.Fatalf("%s: %v", what, err)
	}
	got := load(t, s)
	if quarantined != nil && len(got) != 0 {
		t.Errorf("%s: a new store has %d records", what, len(got))
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	if err := s.Sync(t.Context(), "new", record("new")); err != nil {
		t.Errorf("%s: the store cannot be written to: %v", what, err)
	}
	cancel()
	err = errors.Join(<-done, s.Close(), os.Remove(path))
	if quarantined != nil {
		err = errors.Join(err, os.Remove(quarantined.Path))
	}
	if err != nil {
		t.Fatalf("%s: %v", what, err)
	}
	return quarantined == nil && len(got) == 61
}

// stride is the distance between the cases of a test that could have n, each of which starts a
// process: about 16 cases, and all of them with BERTH_TORTURE.
func stride(n int) int {
	if os.Getenv("BERTH_TORTURE") != "" {
		return 1
	}
	return max(1, n/16)
}

func TestOpenTruncatedFile(t *testing.T) { // C3
	t.Parallel()
	content := filled(t)
	dir := t.TempDir()
	if !reopen(t, dir, "whole", content) {
		t.Fatal("the intact store is not loaded")
	}
	step := os.Getpagesize()
	for n := step / 2; n < len(content); n += stride(len(content)/(step/2)) * step / 2 {
		reopen(t, dir, fmt.Sprintf("cut at %d of %d bytes", n, len(content)), content[:n])
	}
}

func TestOpenCorruptedPages(t *testing.T) { // C3
	t.Parallel()
	content := filled(t)
	dir := t.TempDir()
	rnd := rand.New(rand.NewPCG(3, 4))
	step := os.Getpagesize()
	for at := 0; at < len(content); at += stride(len(content)/step) * step {
		for _, kind := range []string{"zeros", "noise", "bits"} {
			bad := append([]byte(nil), content...)
			page := bad[at : at+step]
			switch kind {
			case "zeros":
				clear(page)
			case "noise":
				for i := range page {
					page[i] = byte(rnd.Uint32())
				}
			case "bits":
				for range 8 {
					page[rnd.IntN(256)] ^= 1 << rnd.IntN(8)
				}
			}
			reopen(t, dir, fmt.Sprintf("%s at %d", kind, at), bad)
		}
	}
}

func FuzzOpen(f *testing.F) {
	content, err := os.ReadFile("testdata/v1.db")
	if err != nil {
		f.Fatal(err)
	}
	for _, at := range []int{0, 16, 64, 4096, 8192, 8200, 8210, 12290, 12300} {
		f.Add([]byte{byte(at >> 8), byte(at), 0xff})
	}
	f.Fuzz(func(t *testing.T, flips []byte) {
		bad := append([]byte(nil), content...)
		for ; len(flips) >= 3; flips = flips[3:] { // offset (two bytes) and bits
			bad[(int(flips[0])<<8|int(flips[1]))%len(bad)] ^= flips[2]
		}
		reopen(t, t.TempDir(), "flipped", bad)
	})
}
