package exectracker

import (
	"bufio"
	"io"
	"os"
	osexec "os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// daemons starts four processes that leave the session of the command: two children, of which one
// has none of its outputs, one whose parent exits immediately, and a child of the first one. A
// fifth child stays in the session.
const daemons = `setsid sh -c 'echo $$; sleep 1000 & echo $!; wait' &
setsid sh -c 'exec 3>&1 >/dev/null; echo $$ >&3; exec sleep 1000 2>&1 3>&-' &
(setsid sh -c 'echo $$; exec sleep 1000' &)
sleep 1000 &
echo $!; read x`

// The processes that a killed command has started are killed, but not another daemon in the same
// cgroup.
func TestDaemonBelongsToCommand(t *testing.T) {
	t.Parallel()
	other := osexec.CommandContext(t.Context(), "sleep", "1000")
	other.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	cmd := osexec.CommandContext(t.Context(), "sh", "-c", daemons)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	cmd.Stdout = w
	if _, err := cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	init := startInit(t)
	n := &record{RequestedAt: sinceBoot(time.Now())}
	if err := other.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _, _ = other.Process.Kill(), other.Wait() }()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	w.Close()
	var pids []int
	lines := bufio.NewReader(r)
	for range 5 {
		line, err := lines.ReadString('\n')
		if err != nil {
			t.Fatal(err)
		}
		pid, _ := strconv.Atoi(strings.TrimSpace(line))
		pids = append(pids, pid)
	}
	leader := cmd.Process.Pid
	if !n.observeTrees(init, []int{leader}) || n.observeTrees(init, []int{leader}) {
		t.Error("a change is not reported once")
	}
	if len(n.Trees) != 1 || len(n.Trees[0].Outputs) != 1 || len(n.Trees[0].Members) < 3 {
		t.Errorf("got process trees %+v", n.Trees)
	}
	if killed := n.killTrees(init); killed != 0 {
		t.Errorf("got %d killed processes of a running command, want 0", killed)
	}
	late := &record{RequestedAt: n.RequestedAt} // first observed after the command has ended
	_ = cmd.Process.Kill()
	_ = cmd.Wait() // the exit code is irrelevant
	if !late.observeTrees(init, []int{leader}) || len(late.Trees) != 1 || len(late.Trees[0].Outputs) == 0 {
		t.Errorf("got process trees after the exit: %+v", late.Trees)
	}
	if killed := n.killTrees(init); killed < 5 { // including the one in the session, which holds the outputs
		t.Errorf("got %d killed processes, want at least 5", killed)
	}
	if _, err := io.Copy(io.Discard, lines); err != nil { // until all holders of the outputs have ended
		t.Error(err)
	}
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		var left []process
		for _, pid := range pids {
			if p, lives := readProcess(pid); lives && p.started >= n.RequestedAt-2*tick {
				left = append(left, p)
			}
		}
		if len(left) == 0 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("processes of %v still running: %+v", pids, left)
		}
	}
	if _, lives := readProcess(other.Process.Pid); !lives {
		t.Error("an unrelated process was killed")
	}
	// A reused PID is not killed.
	n.Trees[0].Members = append(n.Trees[0].Members, processID{other.Process.Pid, 1})
	if n.killTrees(init) != 0 {
		t.Error("a process with a reused PID was killed")
	}
}
