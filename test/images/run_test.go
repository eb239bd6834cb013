package images

import (
	"archive/tar"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-containerregistry/pkg/v1/mutate"
)

// extract unpacks an image's root file system.
func extract(t *testing.T, a Archive) string {
	t.Helper()
	img, err := Load(a.Path)
	if err != nil {
		t.Fatal(err)
	}
	rc := mutate.Extract(img)
	defer rc.Close()
	dir := t.TempDir()
	for r := tar.NewReader(rc); ; {
		h, err := r.Next()
		if err == io.EOF {
			return dir
		}
		if err != nil {
			t.Fatal(err)
		}
		if err := unpack(filepath.Join(dir, h.Name), h, r); err != nil {
			t.Fatal(err)
		}
	}
}

func unpack(name string, h *tar.Header, r io.Reader) error {
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		return err
	}
	switch h.Typeflag {
	case tar.TypeDir:
		return os.MkdirAll(name, 0o755)
	case tar.TypeSymlink:
		return os.Symlink(h.Linkname, name)
	}
	syscall.ForkLock.RLock() // a forked child must not inherit the writable file: exec would fail with ETXTBSY
	defer syscall.ForkLock.RUnlock()
	f, err := os.OpenFile(name, os.O_CREATE|os.O_WRONLY, h.FileInfo().Mode().Perm())
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = io.Copy(f, r)
	return err
}

func TestProgramsRunInTheirImages(t *testing.T) {
	t.Parallel()
	dir, err := CacheDir()
	if err != nil {
		t.Fatal(err)
	}
	all, err := All(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		ref  string
		args []string
		want string
		code int
	}{
		{BusyboxRef, []string{"/bin/sh", "-c", "echo hello; cat /etc/passwd"}, "hello\nroot:x:0:0", 0},
		{BashRef, []string{"/bin/sh", "-c", `echo $BASH_VERSION; env`}, "data-1=kept", 0},
		{TestboxRef, []string{"/bin/testbox", "print", "a", "b", ",", "env", "data-1", ",", "exit", "3"}, "a b\nkept\n",
			3},
		{TestboxRef, []string{"/bin/testbox", "lines", "2", "8", ",", "no-such-step"},
			"line 1.\nline 2.\ntestbox: unknown step", 64},
		{TestboxRef, []string{"/bin/testbox", "write", "/f", "x y", ",", "append", "/f", "z", ",", "cat", "/f", ",",
			"stat", "/f"}, "x yz\n/f -rw-r--r-- 0:0 5", 0},
		{TestboxRef, []string{"/bin/testbox", "crash"}, "requested crash", 2},
		{TestboxRef, []string{"/bin/testbox", "alloc", "3", ",", "threads", "4", ",", "open", "5", ",", "id"},
			"allocated 3 MiB\nthreads 4\nopened 5\nuid=0", 0},
		{NginxRef, []string{"/usr/sbin/nginx", "-t"}, "test is successful", 0},
		{StressRef, []string{"/usr/bin/stress", "--vm", "1", "--vm-bytes", "1M", "--timeout", "1"},
			"successful run completed", 0},
	} {
		t.Run(c.ref+" "+strings.Join(c.args, " "), func(t *testing.T) {
			t.Parallel()
			root := extract(t, archiveOf(t, all, c.ref))
			if err := os.MkdirAll(filepath.Join(root, "dev"), 0o755); err != nil {
				t.Fatal(err)
			}
			cmd := exec.CommandContext(t.Context(), c.args[0], c.args[1:]...)
			cmd.Path, cmd.Err = c.args[0], nil
			cmd.Dir, cmd.Env = "/", []string{searchPath, "data-1=kept"}
			cmd.SysProcAttr = &syscall.SysProcAttr{Chroot: root}
			out, err := cmd.CombinedOutput()
			if cmd.ProcessState == nil {
				t.Fatal(err)
			}
			if code := cmd.ProcessState.ExitCode(); code != c.code || !strings.Contains(string(out), c.want) {
				t.Errorf("exit code %d, want %d; output %q, want %q in it", code, c.code, out, c.want)
			}
		})
	}
}

func TestPauseAndTestboxExitOnTERM(t *testing.T) {
	t.Parallel()
	dir, err := CacheDir()
	if err != nil {
		t.Fatal(err)
	}
	all, err := All(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		ref  string
		args []string
		code int
	}{
		{PauseRef, []string{"/pause"}, 0},
		{TestboxRef, []string{"/bin/testbox", "print", "up", ",", "sleep"}, 143},
		{TestboxRef, []string{"/bin/testbox", "on-term", "1ms", "7", ",", "print", "up", ",", "sleep"}, 7},
	} {
		root := extract(t, archiveOf(t, all, c.ref))
		cmd := exec.CommandContext(t.Context(), c.args[0], c.args[1:]...)
		cmd.Path, cmd.Err = c.args[0], nil
		cmd.Dir, cmd.SysProcAttr = "/", &syscall.SysProcAttr{Chroot: root, Pdeathsig: syscall.SIGKILL}
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		if c.code != 0 {
			if _, err := io.ReadFull(out, make([]byte, len("up\n"))); err != nil {
				t.Fatal(err)
			}
		}
		if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		_ = cmd.Wait() // the exit status is checked below
		// Pause prints nothing: SIGTERM may arrive before it installs its handler.
		status := cmd.ProcessState.Sys().(syscall.WaitStatus)
		if early := c.code == 0 && status.Signal() == syscall.SIGTERM; status.ExitStatus() != c.code && !early {
			t.Errorf("%v: got %s, want exit code %d", c.args, cmd.ProcessState, c.code)
		}
	}
}

func archiveOf(t *testing.T, all []Archive, ref string) Archive {
	t.Helper()
	at := slices.IndexFunc(all, func(a Archive) bool { return a.Ref == ref })
	if at < 0 {
		t.Fatalf("no image %s", ref)
	}
	return all[at]
}
