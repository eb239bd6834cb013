package exectracker

import (
	"io"
	"os"
	osexec "os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestFindRemainingProcesses kills the leader of a session, as the runtime kills a command that timed
// out. It does not kill remaining processes by session, because processes of other tests are in the same cgroup.
func TestFindRemainingProcesses(t *testing.T) {
	t.Parallel()
	began := time.Now()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	cmd := osexec.CommandContext(t.Context(), "sh", "-c", "sleep 1000 & echo $$ $!; read x")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	cmd.Stdout = w
	hold, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	w.Close()
	buf := make([]byte, 64)
	n, err := r.Read(buf)
	if err != nil {
		t.Fatal(err)
	}
	words := strings.Fields(string(buf[:n]))
	leader, _ := strconv.Atoi(words[0])
	left, _ := strconv.Atoi(words[1])
	self, ok := readProcess(os.Getpid())
	if !ok || self.parent != os.Getppid() {
		t.Errorf("got data of this process: %+v", self)
	}
	children := childrenOf(os.Getpid())
	if !slices.ContainsFunc(children, func(p process) bool { return p.pid == leader && p.session == leader }) {
		t.Errorf("children without the command: %+v", children)
	}
	if slices.Contains(orphanedSessions(os.Getpid(), sinceBoot(began)), leader) {
		t.Error("a session with a living leader counts as orphaned")
	}
	hold.Close()
	_ = cmd.Wait() // the exit code is irrelevant
	if !slices.Contains(orphanedSessions(os.Getpid(), sinceBoot(began)), leader) {
		t.Error("the orphaned session was not found")
	}
	if slices.Contains(orphanedSessions(os.Getpid(), sinceBoot(time.Now().Add(time.Minute))), leader) {
		t.Error("a session older than the command was attributed to it")
	}
	if p, lives := readProcess(left); !lives || p.session != leader || !kill(p) {
		t.Errorf("process was not killed: %+v", p)
	}
	if _, err := r.Read(buf); err != io.EOF { // no process holds it open
		t.Error(err)
	}
	gone := process{pid: left, session: leader, started: 1}
	if kill(gone) {
		t.Error("a process with a reused PID was killed")
	}
}
