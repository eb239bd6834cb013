package systemd

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/nftables"

	"berth/test/hosts"
	"berth/test/images"
	"berth/test/nspawn"
)

// waitTimeout limits each wait. It is long enough for a machine that runs all other tests too.
const waitTimeout = 8 * time.Minute

// operator runs commands in a shell of a host, as a user does.
type operator struct {
	*testing.T
	host *nspawn.Host
}

// ignoreDiskUsage is a sed script for the configuration: the disk usage of this machine must not
// affect the test.
const ignoreDiskUsage = `s/^kind: KubeletConfiguration/&\n` +
	`evictionHard: {memory.available: 100Mi}\nimageGCHighThresholdPercent: 100/`

// sh runs a command line that must succeed and returns its trimmed output.
func (o operator) sh(line string) string {
	o.Helper()
	out, err := o.host.Run(o.Context(), "sh", "-c", line)
	if err != nil {
		o.Fatalf("%v\n%s%s", err, out, o.journal())
	}
	return strings.TrimSpace(out)
}

// journal returns the status of the service and the last lines of its log.
func (o operator) journal() string {
	// The context of the test may be done.
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	out, err := o.host.Run(ctx, "sh", "-c", "systemctl status --no-pager -n 0 berth; journalctl -u berth --no-pager "+
		"-o cat -n 60")
	return fmt.Sprintf("%s\n(%v)", out, err)
}

// until repeats a command line until it succeeds and returns its trimmed output.
func (o operator) until(what, line string) string {
	o.Helper()
	ctx, cancel := context.WithTimeout(o.Context(), waitTimeout)
	defer cancel()
	var out string
	err := hosts.WaitFor(ctx, what, func() (bool, error) {
		var err error
		out, err = o.host.Run(ctx, "sh", "-c", line)
		return err == nil, nil
	})
	if err != nil {
		o.Fatalf("%v: %s\n%s", err, out, o.journal())
	}
	return strings.TrimSpace(out)
}

// show returns a property of berth.service.
func (o operator) show(property string) string {
	o.Helper()
	return o.sh("systemctl show --value -p " + property + " berth")
}

func (o operator) number(property string) int {
	o.Helper()
	n, err := strconv.Atoi(o.show(property))
	if err != nil {
		o.Fatal(err)
	}
	return n
}

// tasks lists the running containers with ID and process ID. containerd reports the state UNKNOWN if a shim does
// not respond in time, as on a busy machine.
func (o operator) tasks() string {
	o.Helper()
	return o.until("the shims to respond", `tasks=$(ctr -n k8s.io tasks list) && ! echo "$tasks" | grep -q UNKNOWN `+
		`&& echo "$tasks" | sort`)
}

// checkNotRestarted checks that no container was restarted.
func (o operator) checkNotRestarted(before string) {
	o.Helper()
	if now := o.tasks(); now != before {
		o.Errorf("running containers changed: got\n%s\nwant\n%s", now, before)
	}
}

// waitRunning waits until berth ps shows the pod as running and ready.
func (o operator) waitRunning() {
	o.Helper()
	o.until("the pod to run", "berth ps | grep -E '^(default +)?web +.*Running' && berth ps | grep -q 1/1")
}

const manifest = `apiVersion: v1
kind: ConfigMap
metadata: {name: page}
data: {index.html: hello}
---
apiVersion: v1
kind: Pod
metadata: {name: web}
spec:
  terminationGracePeriodSeconds: 2
  containers:
  - name: web
    image: %s
    imagePullPolicy: Never
    command: [sh, -c, "trap exit TERM; while true; do sleep 1; done"]
    readinessProbe: {exec: {command: [cat, /page/index.html]}}
    volumeMounts: [{name: page, mountPath: /page}, {name: scratch, mountPath: /scratch}]
  volumes:
  - {name: page, configMap: {name: page}}
  - {name: scratch, emptyDir: {medium: Memory, sizeLimit: 1Mi}}
`

// TestServiceLifecycle runs steps on one host. Each step depends on the state that the previous one
// leaves.
func TestServiceLifecycle(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Minute)
	defer cancel()
	busybox := busyboxImage(ctx, t)
	first, err := hosts.BuildBerth(ctx, hosts.BuildOptions{})
	if err != nil {
		t.Fatal(err)
	}
	// A different binary, whose loops can be made to hang.
	newer, err := hosts.BuildBerth(ctx, hosts.BuildOptions{Tags: []string{"crashpoints"}})
	if err != nil {
		t.Fatal(err)
	}
	control, err := hosts.BuildControl(ctx, hosts.BuildOptions{})
	if err != nil {
		t.Fatal(err)
	}
	h := start(ctx, t, busybox.Path)
	err = errors.Join(h.Copy(first, "/root/berth"), h.Copy(newer, "/root/newer/berth"),
		h.Copy(control, "/root/berth-control"), h.WriteFile("/root/web.yaml", fmt.Sprintf(manifest, busybox.Ref)))
	if err != nil {
		t.Fatal(err)
	}
	for _, step := range []struct {
		name string
		do   func(operator)
	}{
		{"install", install}, {"reload", reloadConfig}, {"static pod", runPod},
		{"address change", changeAddress}, {"kill -9", killAgent}, {"stop and start", stopAndStart},
		{"start without a runtime", waitForRuntime},
		{"upgrade", upgrade}, {"reboot", reboot}, {"power loss", losePower},
		{"shutdown by logind", shutdownByLogind}, {"shutdown without logind", shutdownWithoutLogind},
		{"uninstall", uninstall},
		{"control server", serveAPI},
	} {
		if !t.Run(step.name, func(t *testing.T) { step.do(operator{t, h}) }) {
			return
		}
	}
}

// TestWatchdog makes each main loop hang in turn and checks that systemd's watchdog restarts the service. It has
// a host of its own because it waits for minutes.
func TestWatchdog(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Minute)
	defer cancel()
	busybox := busyboxImage(ctx, t)
	berth, err := hosts.BuildBerth(ctx, hosts.BuildOptions{Tags: []string{"crashpoints"}})
	if err != nil {
		t.Fatal(err)
	}
	h := start(ctx, t, busybox.Path)
	err = errors.Join(h.Copy(berth, "/root/berth"),
		h.WriteFile("/root/web.yaml", fmt.Sprintf(manifest, busybox.Ref)))
	if err != nil {
		t.Fatal(err)
	}
	o := operator{t, h}
	o.sh("/root/berth install && sed -i 's/^# cniPodCIDRs:/cniPodCIDRs:/; " + ignoreDiskUsage +
		"' /etc/berth/config.yaml && cp /root/web.yaml /etc/berth/pods/")
	o.sh("mkdir -p /etc/systemd/system/berth.service.d && printf '[Service]\\nWatchdogSec=15\\n' " +
		">/etc/systemd/system/berth.service.d/short.conf && systemctl daemon-reload && systemctl restart berth")
	o.waitRunning()
	before := o.tasks()
	for _, loop := range []string{"agent", "allocator", "probes", "local store", "runtime status"} {
		pid := o.show("MainPID")
		o.sh("echo '" + loop + "' >/run/berth/stall")
		o.until("the watchdog to restart it for "+loop, "test $(systemctl show --value -p MainPID berth) != "+pid+
			" && systemctl is-active berth")
		o.waitRunning()
		o.checkNotRestarted(before)
		log := o.sh("journalctl -u berth --no-pager -o cat")
		cause, restarted := strings.LastIndex(log, loop+" made no progress for"), strings.LastIndex(log,
			"Watchdog timeout")
		if cause < 0 || restarted < cause {
			o.Errorf("the log does not name loop %s before the watchdog timeout:\n%s", loop, log)
		}
		if others := o.sh("journalctl --no-pager -o cat _PID=" + pid + " | grep 'made no progress' | grep -v '" + loop +
			" made no progress'; true"); others != "" {
			o.Errorf("the log names loops other than %s:\n%s", loop, others)
		}
	}
}

// busyboxImage returns the image that the pods use.
func busyboxImage(ctx context.Context, t *testing.T) images.Archive {
	t.Helper()
	cache, err := images.CacheDir()
	if err != nil {
		t.Fatal(err)
	}
	image, err := images.Busybox(ctx, cache)
	if err != nil {
		t.Fatal(err)
	}
	return image
}

// start boots a host, stops it at the end of the test and checks that nothing is left.
func start(ctx context.Context, t *testing.T, archives ...string) *nspawn.Host {
	t.Helper()
	h, err := nspawn.Start(ctx, nspawn.Options{Images: archives})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := h.Stop(); err != nil {
			t.Error(err)
		}
		if left := h.Leaks(); len(left) > 0 {
			t.Errorf("left behind: %q", left)
		}
	})
	return h
}

func install(o operator) {
	planned := o.sh("/root/berth install --dry-run")
	for _, step := range []string{
		"copy /root/berth to /usr/local/bin/berth", "write /etc/berth/config.yaml",
		"write /etc/systemd/system/berth.service", "write /etc/systemd/system/berth-drain.service",
		"systemctl start berth.service", "systemctl enable --now berth-drain.service",
	} {
		if !strings.Contains(planned, step) {
			o.Errorf("install --dry-run prints\n%s\nwant %q", planned, step)
		}
	}
	o.sh("! test -e /usr/local/bin/berth && ! test -e /etc/berth && ! test -e /etc/systemd/system/berth.service")
	if did := o.sh("/root/berth install"); did != planned {
		o.Errorf("install did\n%s\nwant the steps of the dry run\n%s", did, planned)
	}
	// When systemctl start returns, berth has sent READY.
	if state, status := o.show("ActiveState"), o.show("StatusText"); state != "active" ||
		!strings.HasPrefix(status, "0 pods") {
		o.Errorf("berth.service is %s with status %q\n%s", state, status, o.journal())
	}
	o.sh("systemctl is-enabled berth")
	if again := o.sh("/root/berth install && berth install"); strings.Count(again, "nothing to do") != 2 {
		o.Errorf("a second installation prints %q, want nothing to do", again)
	}
	// The host's version of systemd accepts the units too.
	if output := o.sh("systemd-analyze verify --man=no /etc/systemd/system/berth.service " +
		"/etc/systemd/system/berth-drain.service 2>&1"); output != "" {
		o.Errorf("systemd-analyze verify: %s", output)
	}
}

func reloadConfig(o operator) {
	pid := o.show("MainPID")
	o.sh("sed -i 's/^# cniPodCIDRs:/cniPodCIDRs:/; " + ignoreDiskUsage +
		"' /etc/berth/config.yaml && systemctl reload berth")
	o.until("the configured network", "test -e /etc/cni/net.d/10-berth.conflist && systemctl is-active berth")
	o.sh("echo 'noSuchField: 1' >>/etc/berth/config.yaml && systemctl reload berth")
	o.until("the error about the unknown field",
		"journalctl -u berth -o cat --no-pager | grep 'configuration reload failed' | grep noSuchField && systemctl "+
			"is-active berth")
	o.sh("sed -i '/noSuchField/d' /etc/berth/config.yaml && systemctl reload berth")
	o.until("the valid configuration to apply",
		"systemctl show --value -p StatusText berth | grep '^0 pods' && systemctl is-active berth")
	if now := o.show("MainPID"); now != pid || o.number("NRestarts") != 0 {
		o.Errorf("got process %s and %s restarts, want process %s and none", now, o.show("NRestarts"), pid)
	}
}

func runPod(o operator) {
	o.sh("cp /root/web.yaml /etc/berth/pods/")
	o.waitRunning()
	o.until("the status line to count the pod",
		"systemctl show --value -p StatusText berth | grep '^1 pods: 1 running'")
	if got := o.sh("berth exec web -- cat /page/index.html"); got != "hello" {
		o.Errorf("index.html in the pod: got %q, want hello", got)
	}
	// The checks run inside the service: restrictions of the unit must not show up as errors.
	if report := o.sh("berth check; true"); !strings.Contains(report, "  time ") ||
		strings.Contains(report, "not permitted") {
		o.Errorf("berth check fails for lack of permissions:\n%s", report)
	}
	benchmark := o.sh("berth check --cis; true")
	for _, want := range []string{"\n4.1.1    ACCEPTED", "\n4.1.9    PASS", "\n4.2.4    PASS", ", 0 not checked"} {
		if !strings.Contains(benchmark, want) {
			o.Errorf("berth check --cis: got no %q:\n%s", want, benchmark)
		}
	}
	o.until("the pod's events in the journal",
		"journalctl BERTH_POD=default/web BERTH_REASON=Started BERTH_TARGET=web -o cat --no-pager | grep 'Started'")
	if got := o.sh("journalctl BERTH_POD=default/web -o json --no-pager " +
		"--output-fields=BERTH_POD,_SYSTEMD_UNIT,SYSLOG_IDENTIFIER | head -n 1"); !strings.Contains(got,
		`"SYSLOG_IDENTIFIER":"berth"`) ||
		!strings.Contains(got, `"_SYSTEMD_UNIT":"berth.service"`) {
		o.Errorf("journal entry has no identifier or unit of berth: %s", got)
	}
}

// changeAddress gives the host another address, then the old one again. For systemd the agent stays
// the same running service.
func changeAddress(o operator) {
	before, pid, restarts := o.tasks(), o.show("MainPID"), o.number("NRestarts")
	old := o.sh("ip -4 -o addr show dev eth0 | awk '{print $4}' | head -n 1")
	changed := netip.MustParsePrefix(old)
	changed = netip.PrefixFrom(changed.Addr().Next(), changed.Bits())
	for _, change := range []struct{ from, to string }{{old, changed.String()}, {changed.String(), old}} {
		o.sh(fmt.Sprintf("ip addr del %s dev eth0 && ip addr add %s dev eth0", change.from, change.to))
		host, _, _ := strings.Cut(change.to, "/")
		o.until("the pod status to have hostIP "+host, "berth ps web -o yaml | grep -w 'hostIP: "+host+"'")
		o.until("berth to be active", "systemctl show --value -p StatusText berth | grep '^1 pods: 1 running'")
		if state, now, count := o.show("ActiveState"), o.show("MainPID"), o.number("NRestarts"); state != "active" ||
			now != pid || count != restarts {
			o.Fatalf("service is %s, process %s (before: %s), %d restarts (before: %d)\n%s",
				state, now, pid, count, restarts, o.journal())
		}
	}
	o.waitRunning()
	o.checkNotRestarted(before)
}

func killAgent(o operator) {
	before, pid, restarts := o.tasks(), o.show("MainPID"), o.number("NRestarts")
	o.sh("kill -9 " + pid)
	o.until("systemd to restart it", "systemctl is-active berth && test $(systemctl show --value -p MainPID berth) != "+
		pid)
	o.waitRunning()
	o.checkNotRestarted(before)
	if now := o.number("NRestarts"); now != restarts+1 {
		o.Errorf("%d restarts, want %d", now, restarts+1)
	}
}

func stopAndStart(o operator) {
	before := o.tasks()
	o.sh("systemctl stop berth")
	o.checkNotRestarted(before)
	o.sh("systemctl start berth")
	o.waitRunning()
	o.checkNotRestarted(before)
}

// waitForRuntime starts the agent while the runtime is stopped, for longer than the start timeout of
// the unit.
func waitForRuntime(o operator) {
	before, restarts := o.tasks(), o.number("NRestarts")
	// berth.service wants containerd.service, whose start the condition prevents. Removing the file does
	// not need a daemon-reload, which would reset the extended start timeout.
	o.sh(`cd /run/systemd/system && mkdir -p berth.service.d containerd.service.d && touch /run/away &&
		printf '[Service]\nTimeoutStartSec=15\n' >berth.service.d/short.conf &&
		printf '[Unit]\nConditionPathExists=!/run/away\n' >containerd.service.d/away.conf &&
		systemctl daemon-reload && systemctl stop berth containerd && systemctl start --no-block berth`)
	o.until("berth to wait for the runtime", "systemctl show --value -p StatusText berth | grep '^waiting for the "+
		"container runtime'")
	pid := o.show("MainPID")
	// Three times the timeout, on the monotonic clock that systemd uses.
	o.until("the timeout to have passed", `began=$(systemctl show --value -p ExecMainStartTimestampMonotonic berth)
		test $(awk '{printf "%.0f", $1 * 1000000}' /proc/uptime) -gt $((began + 45000000))`)
	if state, now, count := o.show("ActiveState"), o.show("MainPID"), o.number("NRestarts"); state != "activating" ||
		now != pid || count != restarts {
		o.Errorf("service is %s, process %s (before: %s), %d restarts (before: %d)\n%s",
			state, now, pid, count, restarts, o.journal())
	}
	o.sh("rm /run/away && systemctl start containerd")
	o.until("berth to be active",
		"systemctl is-active berth && systemctl show --value -p StatusText berth | grep '^1 pods: 1 running'")
	if now, count := o.show("MainPID"), o.number("NRestarts"); now != pid || count != restarts {
		o.Errorf("got process %s and %d restarts, want %s and %d\n%s", now, count, pid, restarts, o.journal())
	}
	o.sh("cd /run/systemd/system && rm -r berth.service.d containerd.service.d && systemctl daemon-reload")
	o.waitRunning()
	o.checkNotRestarted(before)
}

func upgrade(o operator) {
	before, pid := o.tasks(), o.show("MainPID")
	did := o.sh("/root/newer/berth install")
	if want := "copy /root/newer/berth to /usr/local/bin/berth\nsystemctl restart berth.service"; did != want {
		o.Errorf("upgrade did\n%s\nwant\n%s", did, want)
	}
	o.sh("cmp /root/newer/berth /usr/local/bin/berth")
	o.waitRunning()
	o.checkNotRestarted(before)
	if now := o.show("MainPID"); now == pid {
		o.Error("the service still runs the old program")
	}
	for _, interrupted := range []struct{ name, line, want string }{ // partial upgrades
		{"replaced program", "install /root/berth /usr/local/bin/.next && mv /usr/local/bin/.next /usr/local/bin/berth",
			"systemctl restart berth.service"},
		{"program replaced again",
			"install /root/newer/berth /usr/local/bin/.next && mv /usr/local/bin/.next /usr/local/bin/berth",
			"systemctl restart berth.service"},
		{"changed unit", "touch /etc/systemd/system/berth.service",
			"systemctl daemon-reload\nsystemctl restart berth.service"},
	} {
		pid := o.show("MainPID")
		o.sh(interrupted.line)
		if did := o.sh("berth install"); did != interrupted.want {
			o.Errorf("%s: install did\n%s\nwant\n%s", interrupted.name, did, interrupted.want)
		}
		if now := o.show("MainPID"); now == pid ||
			o.sh("cmp /proc/"+now+"/exe /usr/local/bin/berth; berth install") != "berth is up to date: nothing to do" {
			o.Errorf("%s: service was not restarted with the installed program: process %s, before %s",
				interrupted.name, now, pid)
		}
		o.waitRunning()
		o.checkNotRestarted(before)
	}
}

func reboot(o operator) {
	before := o.tasks()
	if err := o.host.Reboot(o.Context()); err != nil {
		o.Fatal(err)
	}
	checkRestartedPod(o, before)
}

func losePower(o operator) {
	before := o.tasks()
	if err := o.host.PowerLoss(o.Context()); err != nil {
		o.Fatal(err)
	}
	if err := o.host.Boot(o.Context()); err != nil {
		o.Fatal(err)
	}
	checkRestartedPod(o, before)
}

// shutdownByLogind checks that logind delays a reboot until the pods have terminated.
func shutdownByLogind(o operator) {
	o.sh("sed -i 's/^# maxPods: 110/shutdownGracePeriod: 20s/' /etc/berth/config.yaml && systemctl reload berth")
	o.until("logind to be asked to wait", "systemd-inhibit --list --no-pager | grep -w berth | grep -w delay")
	rebootGracefully(o)
}

// shutdownWithoutLogind checks the same with the drain unit only.
func shutdownWithoutLogind(o operator) {
	o.sh("systemctl mask --now systemd-logind")
	before := o.tasks()
	o.sh("systemctl restart berth berth-drain")
	o.waitRunning()
	o.checkNotRestarted(before)
	o.until("berth to log that logind is missing",
		"journalctl -b -u berth -o cat --no-pager | grep 'only the drain unit delays a shutdown'")
	rebootGracefully(o)
	o.sh("systemctl unmask systemd-logind && systemctl start systemd-logind")
}

// rebootGracefully reboots and checks that the pod terminated before the reboot and runs after it.
func rebootGracefully(o operator) {
	o.Helper()
	reboot(o)
	log := o.sh("journalctl -b -1 -u berth -o cat --no-pager")
	shutdown := log[strings.Index(log, "graceful shutdown started")+1:]
	if !strings.Contains(shutdown, `msg="graceful shutdown finished" pods=1 overdue=[]`) {
		o.Errorf("no finished graceful shutdown in the log of the previous boot:\n%s", log)
	}
	if got := o.sh("berth ps"); !strings.Contains(got, "Running") {
		o.Errorf("the pod does not run after the boot:\n%s", got)
	}
}

// checkRestartedPod checks that the pod runs after a boot, in new containers and with one allocated
// address.
func checkRestartedPod(o operator, before string) {
	o.Helper()
	o.until("the pod to be restarted", "ctr -n k8s.io tasks list -q | grep -q .")
	o.waitRunning()
	if now := o.tasks(); now == before || strings.Count(now, "RUNNING") != 2 {
		o.Errorf("containers after the boot:\n%s\nwant two new ones, before the boot:\n%s", now, before)
	}
	o.until("only one allocated address", `test $(ls /var/lib/cni/networks/berth | grep -c '^10\.') = 1`)
}

func uninstall(o operator) {
	planned := o.sh("berth uninstall --dry-run")
	if out, err := o.host.RunWith(o.Context(), strings.NewReader("n\n"), "berth", "uninstall"); err == nil ||
		!strings.Contains(out, planned) {
		o.Errorf("uninstall did not list its steps or ignored the answer no: %v\n%s", err, out)
	}
	o.sh("systemctl is-active berth && ctr -n k8s.io tasks list -q | grep .")
	did := o.sh("berth uninstall --yes")
	for step := range strings.SplitSeq(planned, "\n") {
		if !strings.Contains(did, step) {
			o.Errorf("step %q of the dry run was not done:\n%s", step, did)
		}
	}
	if !strings.Contains(did, "containerd with its images") {
		o.Errorf("uninstall does not name what it keeps:\n%s", did)
	}
	checkNothingLeft(o)
	if info, err := os.Stat(filepath.Join(o.host.Root, "usr/local/bin/berth")); err == nil {
		o.Errorf("the program still exists: %v", info)
	}
	o.sh("/root/newer/berth uninstall | grep 'not installed'")
}

// checkNothingLeft checks that nothing of berth and its pods is left on the host.
func checkNothingLeft(o operator) {
	o.Helper()
	for what, line := range map[string]string{
		"containers": "ctr -n k8s.io containers list -q", "processes of pods": "ctr -n k8s.io tasks list -q",
		"files": "ls -d /usr/local/bin/berth* /usr/bin/berth* /usr/lib/systemd/system/berth* " +
			"/var/lib/systemd/deb-systemd-helper-*/berth* /var/lib/systemd/deb-systemd-helper-*/*/berth* " +
			"/usr/share/*/berth* /usr/share/man/man1/berth* /var/lib/dpkg/info/berth* /etc/berth* /var/lib/berth* " +
			"/run/berth* /var/log/pods /var/log/containers " +
			"/etc/systemd/system/berth* /etc/systemd/system/*.wants/berth* /etc/systemd/logind.conf.d " +
			"/etc/cni/net.d/* /var/lib/cni/networks/* /var/lib/cni/results/* 2>/dev/null; true",
		"files of the agent": "find /var/lib/kubelet* 2>/dev/null; true",
		"mounts":             "grep -E '/var/lib/kubelet|/run/berth|/run/netns' /proc/self/mountinfo; true",
		"cgroups":            "find /sys/fs/cgroup -name '*kubepods*'",
		"units":              "systemctl list-units --all --no-legend --plain 'berth*' 'kubepods*'",
		"links":              "ls /sys/class/net | grep -vE '^(lo|eth0|wire|bonding_masters)$'; true",
		"routes":             "ip route show table all proto 98; ip -6 route show table all proto 98",
		"rules":              "iptables-save -t nat | grep -E 'CNI-[0-9a-f]|name:.*berth'; true",
		"temp files":         "ls -d /tmp/berth* /var/tmp/berth* 2>/dev/null; true",
	} {
		if left := o.sh(line); left != "" {
			o.Errorf("%s left: %s", what, left)
		}
	}
	if left := o.nftablesTables(); left > 0 {
		o.Errorf("%d nftables tables left", left)
	}
	// The default, because berth's configuration of logind has been removed.
	o.until("the default inhibitor delay of logind",
		"systemctl is-active systemd-logind && busctl get-property org.freedesktop.login1 /org/freedesktop/login1 "+
			"org.freedesktop.login1.Manager InhibitDelayMaxUSec | grep -x 't 5000000'")
}

// nftablesTables counts berth's nftables tables on the host.
func (o operator) nftablesTables() (n int) {
	o.Helper()
	ns, err := os.Open(filepath.Join("/run/netns", o.host.Name))
	if err != nil {
		o.Fatal(err)
	}
	defer ns.Close()
	c, err := nftables.New(nftables.WithNetNSFd(int(ns.Fd())))
	if err != nil {
		o.Fatal(err)
	}
	tables, err := c.ListTables()
	if err != nil {
		o.Fatal(err)
	}
	for _, t := range tables {
		if t.Name == "berth" {
			n++
		}
	}
	return n
}

// serveAPI installs, restarts and removes the control server. The agent has been uninstalled before.
func serveAPI(o operator) {
	o.sh("/root/berth-control install")
	if state, status := o.sh("systemctl is-active berth-control"),
		o.sh("systemctl show --value -p StatusText berth-control"); state != "active" ||
		status != "serving the API on [::]:6443" {
		o.Errorf("berth-control is %s with status %q", state, status)
	}
	if line := o.sh("berth-control token create"); !strings.Contains(line, "berth join --server") {
		o.Errorf("token create prints %q, want a berth join command", line)
	}
	o.sh("kill -9 $(systemctl show --value -p MainPID berth-control)")
	o.until("systemd to restart it", "systemctl is-active berth-control && test $(systemctl show --value -p "+
		"NRestarts berth-control) = 1")
	o.sh("mkdir -p /run/systemd/system/berth-control.service.d && printf '[Service]\\nWatchdogSec=15\\n' " +
		">/run/systemd/system/berth-control.service.d/short.conf && " +
		"systemctl daemon-reload && systemctl restart berth-control")
	pid := o.sh("systemctl show --value -p MainPID berth-control")
	o.sh("kill -STOP " + pid)
	o.until("the watchdog to restart it", "test $(systemctl show --value -p MainPID berth-control) != "+pid+
		" && systemctl is-active berth-control")
	o.sh("rm -r /run/systemd/system/berth-control.service.d && systemctl daemon-reload && systemctl restart " +
		"berth-control")
	if again := o.sh("/root/berth-control install"); !strings.Contains(again, "nothing to do") {
		o.Errorf("a second installation prints %q, want nothing to do", again)
	}
	if output := o.sh("berth-control uninstall --yes"); !strings.Contains(output, "kept: /var/lib/berth-control") {
		o.Errorf("uninstall does not name what it keeps: %s", output)
	}
	o.sh("/root/berth-control install && berth-control uninstall --yes --purge")
	if left := o.sh("ls -d /usr/local/bin/berth* /etc/berth* /var/lib/berth* /run/berth* /etc/systemd/system/berth* " +
		"/etc/systemd/system/*.wants/berth* 2>/dev/null; true"); left != "" {
		o.Errorf("left: %s", left)
	}
}
