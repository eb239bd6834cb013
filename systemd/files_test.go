package systemd

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// receivedFiles receives one message with its files.
func receivedFiles(t *testing.T, socket string) (receive func() (string, []*os.File)) {
	t.Helper()
	conn := manager(t, socket)
	return func() (string, []*os.File) {
		if err := conn.SetReadDeadline(time.Now().Add(10 * time.Second)); err != nil {
			t.Fatal(err)
		}
		buf, rights := make([]byte, 4096), make([]byte, 4096)
		n, oobn, _, _, err := conn.ReadMsgUnix(buf, rights)
		if err != nil {
			t.Fatal(err)
		}
		var files []*os.File
		messages, err := unix.ParseSocketControlMessage(rights[:oobn])
		if err != nil {
			t.Fatal(err)
		}
		for i := range messages {
			fds, err := unix.ParseUnixRights(&messages[i])
			if err != nil {
				t.Fatal(err)
			}
			for _, fd := range fds {
				files = append(files, os.NewFile(uintptr(fd), "received"))
			}
		}
		return string(buf[:n]), files
	}
}

func TestStoreFiles(t *testing.T) {
	receive := receivedFiles(t, filepath.Join(t.TempDir(), "notify"))
	n := NewNotifier()
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := n.StoreFiles("dns", read, write); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(read.Close(), write.Close()); err != nil {
		t.Fatal(err)
	}
	text, files := receive()
	if text != "FDSTORE=1\nFDNAME=dns" || len(files) != 2 {
		t.Fatalf("service manager received %q and %d files", text, len(files))
	}
	if _, err := files[1].WriteString("kept"); err != nil {
		t.Fatal(err)
	}
	if err := files[1].Close(); err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(files[0]); err != nil || string(got) != "kept" {
		t.Errorf("the stored pipe has %q: %v", got, err)
	}
	if err := files[0].Close(); err != nil {
		t.Fatal(err)
	}
	if err := n.RemoveFiles("dns"); err != nil {
		t.Fatal(err)
	}
	if text, files := receive(); text != "FDSTOREREMOVE=1\nFDNAME=dns" || len(files) != 0 {
		t.Errorf("service manager received %q and %d files", text, len(files))
	}
}

func TestStoreFilesRejectsInvalidNames(t *testing.T) {
	t.Parallel()
	n := Notifier{socket: filepath.Join(t.TempDir(), "missing")}
	for _, name := range []string{"a:b", "a b", "a\nREADY=1", "ä", strings.Repeat("a", 256)} {
		if err := n.StoreFiles(name, os.Stdin); err == nil || !strings.Contains(err.Error(), "name of files") {
			t.Errorf("%q: %v", name, err)
		}
	}
	if err := n.StoreFiles("dns", make([]*os.File, maxFiles+1)...); err == nil {
		t.Error("too many files are accepted")
	}
	if err := errors.Join(n.StoreFiles("dns"), (Notifier{}).StoreFiles("dns", os.Stdin)); err != nil {
		t.Error("without files or service manager:", err)
	}
}

// TestInheritedFiles starts this test as a process to which a shell passes files, as a service manager does.
func TestInheritedFiles(t *testing.T) {
	if os.Getenv("BERTH_TEST_INHERITED") != "" {
		files := InheritedFiles()
		for _, name := range slices.Sorted(maps.Keys(files)) {
			fmt.Println("inherited", name, len(files[name]))
		}
		text, err := io.ReadAll(files["dns"][1])
		fmt.Println("content", string(text), err, os.Getenv("LISTEN_FDS"), len(InheritedFiles()))
		return
	}
	t.Parallel()
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := write.WriteString("kept"); err != nil {
		t.Fatal(err)
	}
	if err := write.Close(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = read.Close() }()
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = null.Close() }()
	cmd := exec.CommandContext(t.Context(), "/bin/sh", "-c", `LISTEN_PID=$$ exec "$0" -test.run '^TestInheritedFiles$'`,
		os.Args[0])
	cmd.Env = append(os.Environ(), "BERTH_TEST_INHERITED=1", "LISTEN_FDS=3", "LISTEN_FDNAMES=dns:dns:other")
	cmd.ExtraFiles = []*os.File{null, read, null}
	out, err := cmd.CombinedOutput()
	for _, want := range []string{"inherited dns 2\ninherited other 1\n", "content kept <nil>  0\n"} {
		if err != nil || !strings.Contains(string(out), want) {
			t.Errorf("%v, no %q in\n%s", err, want, out)
		}
	}
}
