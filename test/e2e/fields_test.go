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

// mountsOf reads mountinfo lines: the options of what is mounted last at each place.
func mountsOf(log string) map[string]string {
	out := map[string]string{}
	for line := range strings.Lines(log) {
		if f := strings.Fields(line); len(f) > 6 && strings.HasPrefix(f[4], "/") {
			out[f[4]] = f[5]
		}
	}
	return out
}

// TestProcPathsAreMasked: procMount Unmasked needs users of the pod's
// own, which Debian 12's runc does not know: here it is only refused without them.
func TestProcPathsAreMasked(t *testing.T) {
	both(t, func(t *testing.T, s *Space) {
		s.Pod("proc", "containers:\n"+
			sh("plain", "", "cat /proc/self/mountinfo; head -c 1 /proc/kcore | wc -c | sed 's/^/kcore /'; echo 1 > /proc/sys/vm/drop_caches; ls -A /sys/firmware | wc -l | sed 's/^/firmware /'; echo --end--; sleep 1000")+
			box("all", "securityContext: {privileged: true}", "mounts", end, "sleep"))
		log := s.Report("proc", "plain")
		plain, all := mountsOf(log), mountsOf(s.Report("proc", "all"))
		hidden := 0
		for _, path := range []string{"/proc/acpi", "/proc/asound", "/proc/interrupts", "/proc/kcore", "/proc/keys", "/proc/latency_stats", "/proc/sched_debug", "/proc/scsi", "/proc/timer_list", "/sys/firmware", "/sys/devices/virtual/powercap"} {
			if !exists(path) {
				continue // this kernel has none
			}
			hidden++
			if plain[path] == "" {
				t.Errorf("%s is not masked:\n%s", path, log)
			}
			if all[path] != "" {
				t.Errorf("%s is masked for a privileged container", path)
			}
		}
		if hidden < 3 {
			t.Errorf("only %d of the masked paths are there at all", hidden)
		}
		for _, path := range []string{"/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"} {
			if !exists(path) {
				continue
			}
			if o := plain[path]; !strings.HasPrefix(o, "ro") {
				t.Errorf("%s has the options %q", path, o)
			}
			if all[path] != "" {
				t.Errorf("%s is mounted for a privileged container", path)
			}
		}
		s.hasLines(log, "kcore 0", "firmware 0")
		s.contains("a write to a sysctl", log, "Read-only file system")

		s.Pod("bare", "containers:\n"+box("c", "securityContext: {procMount: Unmasked}", "sleep"))
		out := ""
		err := hosts.WaitFor(t.Context(), "the file to be read", func() (bool, error) {
			out = s.Berth("ps", "-n", s.ns)
			return strings.Contains(out, "procMount"), nil
		})
		if s.contains("ps", out, "procMount", "hostUsers"); err != nil {
			t.Error(err)
		}
	})
}

func TestMountPropagation(t *testing.T) {
	both(t, func(t *testing.T, s *Space) {
		dir := filepath.Join(s.Agent.RootDir, "propagates-"+s.ns) // of a mount that is shared
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
			// First, because what is there when a container is made comes with its folder.
			box("alone", mount("None"), "ls /v", end, "sleep")+
			box("sees", mount("HostToContainer"), "await /v/host/here", "await /v/pod/here", "cat /v/host/here", end, "sleep")+
			sh("makes", mount("Bidirectional")+", securityContext: {privileged: true}", "mount -t tmpfs made /v/pod && touch /v/pod/here && echo --end--; sleep 1000"))
		s.Running("propagates")
		s.Report("propagates", "makes")
		if !exists(filepath.Join(inPod, "here")) {
			t.Error("the host does not see what a container with Bidirectional has mounted")
		}
		if err := unix.Mount("late", onHost, "tmpfs", 0, "size=1m"); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(onHost, "here"), []byte("from the host\n"), 0o644); err != nil {
			t.Fatal(err)
		}
		s.hasLines(s.Report("propagates", "sees"), "from the host")
		s.contains("a folder without propagation", s.Report("propagates", "alone"), "host d", "pod d")
		for _, d := range []string{"/v/host", "/v/pod"} {
			if out := s.Exec("propagates", "alone", "/bin/testbox", "ls", d); strings.Contains(out, "here") {
				t.Errorf("%s came to a container without propagation", d)
			}
		}
	})
}

// TestSupplementalGroupsPolicy: in the image user 1001 is a member of group 2001.
func TestSupplementalGroupsPolicy(t *testing.T) {
	both(t, func(t *testing.T, s *Space) {
		const who = "runAsUser: 1001, runAsGroup: 1200, supplementalGroups: [1400]"
		s.Pod("merge", "securityContext: {"+who+", supplementalGroupsPolicy: Merge}\ncontainers:\n"+box("c", "", "id", end, "sleep"))
		s.hasLines(s.Report("merge", "c"), "uid=1001 gid=1200 groups=1200 1400 2001")
		s.Pod("strict", "securityContext: {"+who+", supplementalGroupsPolicy: Strict}\ncontainers:\n"+box("c", "", "id", end, "sleep"))
		if !s.has("supplementalGroupsPolicy Strict") {
			s.Event("strict", "SupplementalGroupsPolicyNotSupported: SupplementalGroupsPolicy=Strict is not supported in this node")
			s.Phase("strict", corev1.PodFailed)
			return
		}
		s.hasLines(s.Report("strict", "c"), "uid=1001 gid=1200 groups=1200 1400")
	})
}

func TestUDPHostPortReachesPod(t *testing.T) {
	both(t, func(t *testing.T, s *Space) {
		port := 21002 + s.Host.Number*20
		s.Pod("udp", fmt.Sprintf("containers:\n"+box("c", "ports: [{containerPort: 5353, hostPort: %d, protocol: UDP}]", "udp 5353"), port))
		// The same number of the other protocol is another port.
		s.Pod("tcp", fmt.Sprintf("containers:\n"+box("c", "ports: [{containerPort: 8080, hostPort: %d, protocol: TCP}]", "serve"), port))
		s.Running("udp")
		s.Running("tcp")
		at := fmt.Sprintf("%s:%d", s.Host.Gateway, port)
		var last error
		err := hosts.WaitFor(t.Context(), "an echo from "+at, func() (bool, error) {
			var got string
			got, last = datagram(at, s.ns)
			return got == s.ns, nil
		})
		if err != nil {
			t.Fatal(err, last)
		}
		if got := s.answer("http://" + at + "/"); got != "tcp\n" {
			t.Errorf("it answers %q", got)
		}
	})
}

// datagram sends one and returns the answer.
func datagram(at, text string) (string, error) {
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
	both(t, func(t *testing.T, s *Space) {
		s.Pod("input", "restartPolicy: Never\ncontainers:\n"+
			box("once", "stdin: true, stdinOnce: true", "stdin", "print closed", end)+
			box("ever", "stdin: true", "stdin", "print closed", end))
		s.Running("input")
		s.give("ever", "first")
		s.give("ever", "second") // it was still open
		s.give("once", "word")
		s.hasLines(s.Report("input", "once"), "word", "closed")
		p := s.Wait("input", "at the end of once", func(p *corev1.Pod) bool { return status(p, "once").State.Terminated != nil })
		if x := status(p, "once").State.Terminated; x.ExitCode != 0 {
			t.Errorf("once ended with %d", x.ExitCode)
		}
		if log := s.log("input", "ever", false); log != "first\nsecond\n" || status(p, "ever").State.Running == nil {
			t.Errorf("the input of the other ended too: %q\n%s", log, brief(p))
		}
	})
}

// give attaches to a container, writes a line and leaves when the log has it.
func (s *Space) give(container, line string) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), waitBound)
	defer cancel()
	cmd := s.Agent.Command(ctx, "attach", "-i", "-n", s.ns, "input", "-c", container)
	cmd.Stdin = strings.NewReader(line + "\n")
	if err := cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	defer func() {
		cancel()
		_ = cmd.Wait() // ended here, or with its container
	}()
	s.Said("input", container, line+"\n")
}
