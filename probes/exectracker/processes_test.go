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

// startInit starts a process in the place of a container's init process. Its parent, the test, is in
// the place of the shim.
func startInit(t *testing.T) (pid int) {
	t.Helper()
	cmd := osexec.CommandContext(t.Context(), "sleep", "1000")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = cmd.Process.Kill(), cmd.Wait() })
	return cmd.Process.Pid
}

// TestFindRemainingProcesses kills the leader of a session, as the runtime kills a command that timed
// out. It does not kill remaining processes by session, because processes of other tests are in the same cgroup.
func TestFindRemainingProcesses(t *testing.T) {
	t.Parallel()
	init, n := startInit(t), record{RequestedAt: sinceBoot(time.Now())}
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
	size, err := r.Read(buf)
	if err != nil {
		t.Fatal(err)
	}
	words := strings.Fields(string(buf[:size]))
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
	if slices.Contains(orphanedSessions(init, n, nil), leader) {
		t.Error("a session with a living leader counts as orphaned")
	}
	hold.Close()
	_ = cmd.Wait() // the exit code is irrelevant
	if !slices.Contains(orphanedSessions(init, n, nil), leader) {
		t.Error("the orphaned session was not found")
	}
	later := record{RequestedAt: sinceBoot(time.Now().Add(time.Minute))}
	if slices.Contains(orphanedSessions(init, later, nil), leader) {
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

// stray starts a shell that leaves a process behind and ends. It returns the PIDs of the shell, whose
// session remains, and of the process. The process has the output file.
func stray(t *testing.T, output *os.File) (leader, pid int) {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	cmd := osexec.CommandContext(t.Context(), "sh", "-c", "sleep 1000 3>&- & echo $! >&3")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	cmd.Stdout, cmd.ExtraFiles = output, []*os.File{w}
	err = cmd.Run()
	w.Close()
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	if pid, err = strconv.Atoi(strings.TrimSpace(string(text))); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = syscall.Kill(pid, syscall.SIGKILL) })
	return cmd.Process.Pid, pid
}

// TestStraysOfOthersAreNotAttributed: only a process with a pipe that the runtime reads and that nothing
// older has is a stray of the command.
func TestStraysOfOthersAreNotAttributed(t *testing.T) {
	t.Parallel()
	init := startInit(t)
	older, old, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer older.Close()
	holder := osexec.CommandContext(t.Context(), "sleep", "1000")
	holder.ExtraFiles = []*os.File{old}
	if err := holder.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = holder.Process.Kill(), holder.Wait() })
	for p, _ := readProcess(holder.Process.Pid); p.started >= sinceBoot(time.Now())-3*tick; {
		time.Sleep(10 * time.Millisecond) // the holder must be older than the command
	}
	n := record{Command: []string{"probe"}, RequestedAt: sinceBoot(time.Now())}

	read, write, err := os.Pipe() // of the command: the test reads it, as the shim does
	if err != nil {
		t.Fatal(err)
	}
	defer read.Close()
	own, _ := stray(t, write)
	write.Close()
	inherited, _ := stray(t, old)
	old.Close()
	internal, internalOutput := strayInPipeline(t)

	// A cleanup lists the processes every 100 ms, so a list may miss one that was created just now.
	var found []int
	for deadline := time.Now().Add(time.Minute); !slices.Contains(found, own); found = orphanedSessions(init, n, nil) {
		if time.Now().After(deadline) {
			t.Fatalf("got sessions %v, want that of the command, %d", found, own)
		}
	}
	if slices.Contains(found, inherited) {
		t.Errorf("session %d with a pipe of an older process was attributed to the command", inherited)
	}
	if slices.Contains(found, internal) {
		t.Errorf("session %d with a pipe between processes, %s, was attributed to the command", internal,
			internalOutput)
	}
	users := userExecs{{Command: []string{"sh"}, RequestedAt: n.RequestedAt}}
	if found := orphanedSessions(init, n, users); slices.Contains(found, own) {
		t.Errorf("session %d, which may be that of a user exec, was attributed to the command", own)
	}
}

// strayInPipeline leaves a process whose output another process of the container reads.
func strayInPipeline(t *testing.T) (leader int, output string) {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	reader := osexec.CommandContext(t.Context(), "sleep", "1000")
	reader.Stdin = r
	if err := reader.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = reader.Process.Kill(), reader.Wait() })
	r.Close()
	leader, pid := stray(t, w)
	w.Close()
	output, err = os.Readlink(procPath(pid, "fd/1"))
	if err != nil || !strings.HasPrefix(output, pipePrefix) {
		t.Fatalf("output of the process: %q, %v", output, err)
	}
	return leader, output
}
