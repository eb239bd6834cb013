package e2e

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"berth/test/hosts"
)

// mountOptions parses mountinfo lines. It returns the options of the topmost mount by mount point.
func mountOptions(log string) map[string]string {
	out := map[string]string{}
	for line := range strings.Lines(log) {
		if f := strings.Fields(line); len(f) > 6 && strings.HasPrefix(f[4], "/") {
			out[f[4]] = f[5]
		}
	}
	return out
}

// TestProcPathsAreMasked checks the default procMount. procMount Unmasked requires a user namespace,
// which the runc of Debian 12 does not support. The test only checks that it is rejected without one.
func TestProcPathsAreMasked(t *testing.T) {
	forEachContainerd(t, func(t *testing.T, s *Namespace) {
		s.Pod("proc", "containers:\n"+
			sh("plain", "", "cat /proc/self/mountinfo; head -c 1 /proc/kcore | wc -c | sed 's/^/kcore /'; echo 1 > "+
				"/proc/sys/vm/drop_caches; ls -A /sys/firmware | wc -l | sed 's/^/firmware /'; echo "+
				"--end--; sleep 1000")+
			box("all", "securityContext: {privileged: true}", "mounts", end, "sleep"))
		log := s.WaitOutput("proc", "plain")
		unprivileged, privileged := mountOptions(log), mountOptions(s.WaitOutput("proc", "all"))
		checked := 0
		for _, path := range []string{"/proc/acpi", "/proc/asound", "/proc/interrupts", "/proc/kcore", "/proc/keys",
			"/proc/latency_stats", "/proc/sched_debug", "/proc/scsi", "/proc/timer_list", "/sys/firmware",
			"/sys/devices/virtual/powercap"} {
			if !exists(path) {
				continue // not in this kernel
			}
			checked++
			if unprivileged[path] == "" {
				t.Errorf("%s is not masked:\n%s", path, log)
			}
			if privileged[path] != "" {
				t.Errorf("%s is masked for a privileged container", path)
			}
		}
		if checked < 3 {
			t.Errorf("only %d of the masked paths exist on this host", checked)
		}
		for _, path := range []string{"/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"} {
			if !exists(path) {
				continue
			}
			if o := unprivileged[path]; !strings.HasPrefix(o, "ro") {
				t.Errorf("%s: got mount options %q, want read-only", path, o)
			}
			if privileged[path] != "" {
				t.Errorf("%s is mounted for a privileged container", path)
			}
		}
		s.hasLines(log, "kcore 0", "firmware 0")
		s.contains("a write to a sysctl", log, "Read-only file system")

		s.Pod("bare", "containers:\n"+box("c", "securityContext: {procMount: Unmasked}", "sleep"))
		out := ""
		err := hosts.WaitFor(t.Context(), "the manifest to be rejected", func() (bool, error) {
			out = s.Berth("ps", "-n", s.ns)
			return strings.Contains(out, "procMount"), nil
		})
		if s.contains("ps", out, "procMount", "hostUsers"); err != nil {
			t.Error(err)
		}
	})
}

func TestMountPropagation(t *testing.T) {
	forEachContainerd(t, func(t *testing.T, s *Namespace) {
		dir := filepath.Join(s.Agent.RootDir, "propagates-"+s.ns) // on a shared mount
		onHost, inPod := filepath.Join(dir, "host"), filepath.Join(dir, "pod")
		for _, d := range []string{onHost, inPod} {
			if err := os.MkdirAll(d, 0o755); err != nil {
				t.Fatal(err)
			}
		}
		t.Cleanup(func() {
			for _, d := range []string{onHost, inPod} {
				if err := unix.Unmount(d, unix.MNT_DETACH); err != nil && !errors.Is(err, unix.EINVAL) {
					t.Error(err)
				}
			}
			if err := os.RemoveAll(dir); err != nil {
				t.Error(err)
			}
		})
		mount := func(mode string) string {
			return "volumeMounts: [{name: v, mountPath: /v, mountPropagation: " + mode + "}]"
		}
		s.Pod("propagates", "volumes: [{name: v, hostPath: {path: "+dir+", type: Directory}}]\ncontainers:\n"+
			// First, because an rbind mount includes the mounts that exist when the container is created.
			box("private", mount("None"), "ls /v", end, "sleep")+
			box("observes", mount("HostToContainer"), "await /v/host/here", "await /v/pod/here", "cat /v/host/here",
				end,
				"sleep")+
			sh("makes", mount("Bidirectional")+", securityContext: {privileged: true}",
				"mount -t tmpfs made /v/pod && touch /v/pod/here && echo --end--; sleep 1000"))
		s.Running("propagates")
		s.WaitOutput("propagates", "makes")
		if !exists(filepath.Join(inPod, "here")) {
			t.Error("a mount of a container with Bidirectional is not visible on the host")
		}
		if err := unix.Mount("late", onHost, "tmpfs", 0, "size=1m"); err != nil {
			t.Fatal(err)
		}
		// The container reads the file as soon as it exists.
		file := filepath.Join(onHost, "here")
		if err := errors.Join(os.WriteFile(file+".new", []byte("from the host\n"), 0o644),
			os.Rename(file+".new", file)); err != nil {
			t.Fatal(err)
		}
		s.hasLines(s.WaitOutput("propagates", "observes"), "from the host")
		s.contains("directory without propagation", s.WaitOutput("propagates", "private"), "host d", "pod d")
		for _, d := range []string{"/v/host", "/v/pod"} {
			if out := s.Exec("propagates", "private", "/bin/testbox", "ls", d); strings.Contains(out, "here") {
				t.Errorf("mount at %s is visible in a container without propagation", d)
			}
		}
	})
}

// TestSupplementalGroupsPolicy uses an image in which user 1001 is a member of group 2001.
func TestSupplementalGroupsPolicy(t *testing.T) {
	forEachContainerd(t, func(t *testing.T, s *Namespace) {
		const ids = "runAsUser: 1001, runAsGroup: 1200, supplementalGroups: [1400]"
		s.Pod("merge", "securityContext: {"+ids+", supplementalGroupsPolicy: Merge}\ncontainers:\n"+
			box("c", "", "id", end, "sleep"))
		s.hasLines(s.WaitOutput("merge", "c"), "uid=1001 gid=1200 groups=1200 1400 2001")
		s.Pod("strict", "securityContext: {"+ids+", supplementalGroupsPolicy: Strict}\ncontainers:\n"+
			box("c", "", "id", end, "sleep"))
		if !s.supports("supplementalGroupsPolicy Strict") {
			s.Event("strict", "SupplementalGroupsPolicyNotSupported: SupplementalGroupsPolicy=Strict is not "+
				"supported in this node")
			s.Phase("strict", corev1.PodFailed)
			return
		}
		s.hasLines(s.WaitOutput("strict", "c"), "uid=1001 gid=1200 groups=1200 1400")
	})
}

func TestUDPHostPortReachesPod(t *testing.T) {
	forEachContainerd(t, func(t *testing.T, s *Namespace) {
		port := 21002 + s.Host.Number*20
		s.Pod("udp", fmt.Sprintf("containers:\n"+box("c", "ports: [{containerPort: 5353, hostPort: %d, protocol: UDP}]",
			"udp 5353"), port))
		// The same port number with another protocol does not conflict.
		s.Pod("tcp", fmt.Sprintf("containers:\n"+box("c", "ports: [{containerPort: 8080, hostPort: %d, protocol: TCP}]",
			"serve"), port))
		s.Running("udp")
		s.Running("tcp")
		address := fmt.Sprintf("%s:%d", s.Host.Gateway, port)
		var lastErr error
		err := hosts.WaitFor(t.Context(), "an echo from "+address, func() (bool, error) {
			var got string
			got, lastErr = sendUDP(address, s.ns)
			return got == s.ns, nil
		})
		if err != nil {
			t.Fatal(err, lastErr)
		}
		if got := s.waitHTTP("http://" + address + "/"); got != "tcp\n" {
			t.Errorf("got response %q, want \"tcp\\n\"", got)
		}
	})
}

// sendUDP sends a datagram and returns the response.
func sendUDP(at, text string) (string, error) {
	c, err := net.Dial("udp", at)
	if err != nil {
		return "", err
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(2 * time.Second)); err != nil {
		return "", err
	}
	if _, err := c.Write([]byte(text)); err != nil {
		return "", err
	}
	buf := make([]byte, 1500)
	n, err := c.Read(buf)
	return string(buf[:n]), err
}

func TestStdinOnceClosesAfterFirstAttach(t *testing.T) {
	forEachContainerd(t, func(t *testing.T, s *Namespace) {
		s.Pod("input", "restartPolicy: Never\ncontainers:\n"+
			box("once", "stdin: true, stdinOnce: true", "stdin", "print closed", end)+
			box("ever", "stdin: true", "stdin", "print closed", end))
		s.Running("input")
		s.sendInput("ever", "first")
		s.sendInput("ever", "second") // stdin is still open
		s.sendInput("once", "word")
		s.hasLines(s.WaitOutput("input", "once"), "word", "closed")
		p := s.Wait("input", "running with once terminated", func(p *corev1.Pod) bool {
			return status(p, "once").State.Terminated != nil
		})
		if x := status(p, "once").State.Terminated; x.ExitCode != 0 {
			t.Errorf("container once: got exit code %d, want 0", x.ExitCode)
		}
		if log := s.log("input", "ever", false); log != "first\nsecond\n" || status(p, "ever").State.Running == nil {
			t.Errorf("stdin of container ever was closed: %q\n%s", log, brief(p))
		}
	})
}

// sendInput attaches to a container, writes a line and detaches when the log has it.
func (s *Namespace) sendInput(container, line string) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), waitTimeout)
	defer cancel()
	cmd := s.Agent.Command(ctx, "attach", "-i", "-n", s.ns, "input", "-c", container)
	cmd.Stdin = strings.NewReader(line + "\n")
	if err := cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	defer func() {
		cancel()
		_ = cmd.Wait() // canceled here or ended with its container
	}()
	s.WaitLog("input", container, line+"\n")
}
