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

// bound is for each thing that is waited for, on a machine that runs all other
// tests too.
const bound = 3 * time.Minute

// operator is a user with a shell on a host.
type operator struct {
	*testing.T
	host *nspawn.Host
}

// anyDisk has sed configure that how full the machine's own disk is decides nothing.
const anyDisk = `s/^kind: KubeletConfiguration/&\nevictionHard: {memory.available: 100Mi}\nimageGCHighThresholdPercent: 100/`

// sh runs a line that has to succeed.
func (o operator) sh(line string) string {
	o.Helper()
	out, err := o.host.Run(o.Context(), "sh", "-c", line)
	if err != nil {
		o.Fatalf("%v\n%s%s", err, out, o.journal())
	}
	return strings.TrimSpace(out)
}

// journal is the end of what berth said.
func (o operator) journal() string {
	// Not the test's context: that of a test that failed has ended.
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	out, err := o.host.Run(ctx, "sh", "-c", "systemctl status --no-pager -n 0 berth; journalctl -u berth --no-pager -o cat -n 60")
	return fmt.Sprintf("%s\n(%v)", out, err)
}

// until waits for a line to succeed.
func (o operator) until(what, line string) string {
	o.Helper()
	ctx, cancel := context.WithTimeout(o.Context(), bound)
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

// show is a property of berth's service.
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

// tasks are all containers that run, by ID and process.
func (o operator) tasks() string {
	o.Helper()
	return o.sh("ctr -n k8s.io tasks list | sort")
}

// unharmed checks that no container was restarted.
func (o operator) unharmed(before string) {
	o.Helper()
	if now := o.tasks(); now != before {
		o.Errorf("containers before:\n%s\nnow:\n%s", before, now)
	}
}

// running waits for the pod to run and be ready, as berth tells.
func (o operator) running() {
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

// TestServiceLifecycle is one host and what happens to it, in order: each part
// finds the host as the one before has left it.
func TestServiceLifecycle(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Minute)
	defer cancel()
	busybox := busyboxOf(ctx, t)
	first, err := hosts.BuildBerth(ctx, hosts.BuildOptions{})
	if err != nil {
		t.Fatal(err)
	}
	// Another program, which can be made to hang.
	newer, err := hosts.BuildBerth(ctx, hosts.BuildOptions{Tags: []string{"crashpoints"}})
	if err != nil {
		t.Fatal(err)
	}
	control, err := hosts.BuildControl(ctx, hosts.BuildOptions{})
	if err != nil {
		t.Fatal(err)
	}
	h := start(ctx, t, busybox.Path)
	if err := errors.Join(h.Copy(first, "/root/berth"), h.Copy(newer, "/root/newer/berth"), h.Copy(control, "/root/berth-control"), h.WriteFile("/root/web.yaml", fmt.Sprintf(manifest, busybox.Ref))); err != nil {
		t.Fatal(err)
	}
	for _, part := range []struct {
		name string
		do   func(operator)
	}{
		{"install", installs}, {"reload", reloads}, {"a pod from a manifest", runsAPod}, {"another address", moves}, {"kill -9", killed}, {"stop and start", stops}, {"without a runtime", waits},
		{"upgrade", upgrades}, {"watchdog", hangs}, {"reboot", reboots}, {"power loss", losesPower},
		{"shutdown by logind", goesDown}, {"shutdown without logind", goesDownAlone}, {"uninstall", uninstalls},
		{"control server", servesTheAPI},
	} {
		if !t.Run(part.name, func(t *testing.T) { part.do(operator{t, h}) }) {
			return
		}
	}
}

// busyboxOf is the image of the pods.
func busyboxOf(ctx context.Context, t *testing.T) images.Archive {
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

// start boots a host that the test's end takes away.
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
		if left := h.Leftovers(); len(left) > 0 {
			t.Errorf("left behind: %q", left)
		}
	})
	return h
}

func installs(o operator) {
	would := o.sh("/root/berth install --dry-run")
	for _, step := range []string{"copy /root/berth to /usr/local/bin/berth", "write /etc/berth/config.yaml", "write /etc/systemd/system/berth.service",
		"write /etc/systemd/system/berth-drain.service", "systemctl start berth.service", "systemctl enable --now berth-drain.service"} {
		if !strings.Contains(would, step) {
			o.Errorf("a dry run says\n%s\nand not %q", would, step)
		}
	}
	o.sh("! test -e /usr/local/bin/berth && ! test -e /etc/berth && ! test -e /etc/systemd/system/berth.service")
	if did := o.sh("/root/berth install"); did != would {
		o.Errorf("it did\n%s\nand would have done\n%s", did, would)
	}
	// Its start is over when systemctl start returns: READY has been sent by then.
	if state, status := o.show("ActiveState"), o.show("StatusText"); state != "active" || !strings.HasPrefix(status, "0 pods") {
		o.Errorf("it is %s with status %q\n%s", state, status, o.journal())
	}
	o.sh("systemctl is-enabled berth")
	if again := o.sh("/root/berth install && berth install"); strings.Count(again, "nothing to do") != 2 {
		o.Errorf("a second installation: %s", again)
	}
	// systemd of the host itself has nothing to say about the unit either.
	if said := o.sh("systemd-analyze verify --man=no /etc/systemd/system/berth.service /etc/systemd/system/berth-drain.service 2>&1"); said != "" {
		o.Errorf("systemd-analyze verify: %s", said)
	}
}

func reloads(o operator) {
	pid := o.show("MainPID")
	o.sh("sed -i 's/^# cniPodCIDRs:/cniPodCIDRs:/; " + anyDisk + "' /etc/berth/config.yaml && systemctl reload berth")
	o.until("the network that the configuration asks for", "test -e /etc/cni/net.d/10-berth.conflist && systemctl is-active berth")
	o.sh("echo 'noSuchField: 1' >>/etc/berth/config.yaml && systemctl reload berth")
	o.until("the complaint", "journalctl -u berth -o cat --no-pager | grep 'configuration reload failed' | grep noSuchField && systemctl is-active berth")
	o.sh("sed -i '/noSuchField/d' /etc/berth/config.yaml && systemctl reload berth")
	o.until("the good one again", "systemctl show --value -p StatusText berth | grep '^0 pods' && systemctl is-active berth")
	if now := o.show("MainPID"); now != pid || o.number("NRestarts") != 0 {
		o.Errorf("process %s became %s, with %s restarts", pid, now, o.show("NRestarts"))
	}
}

func runsAPod(o operator) {
	o.sh("cp /root/web.yaml /etc/berth/pods/")
	o.running()
	o.until("the status line to tell of it", "systemctl show --value -p StatusText berth | grep '^1 pods: 1 running'")
	if got := o.sh("berth exec web -- cat /page/index.html"); got != "hello" {
		o.Errorf("in the pod: %q", got)
	}
	// It looks from inside the service: what the unit denies it is no fault of the host.
	if report := o.sh("berth check; true"); !strings.Contains(report, "  time ") || strings.Contains(report, "not permitted") {
		o.Errorf("by its own words it cannot look:\n%s", report)
	}
	o.until("the journal to tell the pod's story", "journalctl BERTH_POD=default/web BERTH_REASON=Started BERTH_ON=web -o cat --no-pager | grep 'Started'")
	if got := o.sh("journalctl BERTH_POD=default/web -o json --no-pager --output-fields=BERTH_POD,_SYSTEMD_UNIT,SYSLOG_IDENTIFIER | head -n 1"); !strings.Contains(got, `"SYSLOG_IDENTIFIER":"berth"`) ||
		!strings.Contains(got, `"_SYSTEMD_UNIT":"berth.service"`) {
		o.Errorf("the entry: %s", got)
	}
}

// moves gives the host another address and the old one back: to systemd the agent stays
// the same service all the time.
func moves(o operator) {
	before, pid, restarts := o.tasks(), o.show("MainPID"), o.number("NRestarts")
	old := o.sh("ip -4 -o addr show dev eth0 | awk '{print $4}' | head -n 1")
	other := netip.MustParsePrefix(old)
	other = netip.PrefixFrom(other.Addr().Next(), other.Bits())
	for _, to := range []struct{ from, to string }{{old, other.String()}, {other.String(), old}} {
		o.sh(fmt.Sprintf("ip addr del %s dev eth0 && ip addr add %s dev eth0", to.from, to.to))
		host, _, _ := strings.Cut(to.to, "/")
		o.until("the pod to tell the address "+host, "berth ps web -o yaml | grep -w 'hostIP: "+host+"'")
		o.until("berth to be in service", "systemctl show --value -p StatusText berth | grep '^1 pods: 1 running'")
		if state, now, count := o.show("ActiveState"), o.show("MainPID"), o.number("NRestarts"); state != "active" || now != pid || count != restarts {
			o.Fatalf("it is %s as process %s (%s before), started again %d times (%d before)\n%s", state, now, pid, count, restarts, o.journal())
		}
	}
	o.running()
	o.unharmed(before)
}

func killed(o operator) {
	before, pid, restarts := o.tasks(), o.show("MainPID"), o.number("NRestarts")
	o.sh("kill -9 " + pid)
	o.until("systemd to restart it", "systemctl is-active berth && test $(systemctl show --value -p MainPID berth) != "+pid)
	o.running()
	o.unharmed(before)
	if now := o.number("NRestarts"); now != restarts+1 {
		o.Errorf("%d restarts, want %d", now, restarts+1)
	}
}

func stops(o operator) {
	before := o.tasks()
	o.sh("systemctl stop berth")
	o.unharmed(before)
	o.sh("systemctl start berth")
	o.running()
	o.unharmed(before)
}

// waits starts the agent while the runtime is away, for longer than systemd would wait
// for a service that says nothing.
func waits(o operator) {
	before, restarts := o.tasks(), o.number("NRestarts")
	// berth wants the runtime's unit, so that must not be able to start; and to change that back must
	// not take a daemon-reload, at which systemd forgets that the timeout was put off.
	o.sh(`cd /run/systemd/system && mkdir -p berth.service.d containerd.service.d && touch /run/away &&
		printf '[Service]\nTimeoutStartSec=5\n' >berth.service.d/short.conf && printf '[Unit]\nConditionPathExists=!/run/away\n' >containerd.service.d/away.conf &&
		systemctl daemon-reload && systemctl stop berth containerd && systemctl start --no-block berth`)
	o.until("berth to wait for the runtime", "systemctl show --value -p StatusText berth | grep '^waiting for the container runtime'")
	pid := o.show("MainPID")
	// Three times as long, by the clock that systemd itself goes by.
	o.until("the timeout to have passed", `began=$(systemctl show --value -p ExecMainStartTimestampMonotonic berth)
		test $(awk '{printf "%.0f", $1 * 1000000}' /proc/uptime) -gt $((began + 15000000))`)
	if state, now, count := o.show("ActiveState"), o.show("MainPID"), o.number("NRestarts"); state != "activating" || now != pid || count != restarts {
		o.Errorf("it is %s as process %s (%s before), started again %d times (%d before)\n%s", state, now, pid, count, restarts, o.journal())
	}
	o.sh("rm /run/away && systemctl start containerd")
	o.until("berth to be in service", "systemctl is-active berth && systemctl show --value -p StatusText berth | grep '^1 pods: 1 running'")
	if now, count := o.show("MainPID"), o.number("NRestarts"); now != pid || count != restarts {
		o.Errorf("process %s became %s, started again %d times (%d before)\n%s", pid, now, count, restarts, o.journal())
	}
	o.sh("cd /run/systemd/system && rm -r berth.service.d containerd.service.d && systemctl daemon-reload")
	o.running()
	o.unharmed(before)
}

func upgrades(o operator) {
	before, pid := o.tasks(), o.show("MainPID")
	did := o.sh("/root/newer/berth install")
	if want := "copy /root/newer/berth to /usr/local/bin/berth\nsystemctl restart berth.service"; did != want {
		o.Errorf("an upgrade did\n%s\nwant\n%s", did, want)
	}
	o.sh("cmp /root/newer/berth /usr/local/bin/berth")
	o.running()
	o.unharmed(before)
	if now := o.show("MainPID"); now == pid {
		o.Error("the old program runs still")
	}
	for _, half := range []struct{ what, line, want string }{ // done by an interrupted operator
		{"a program was swapped", "install /root/berth /usr/local/bin/.next && mv /usr/local/bin/.next /usr/local/bin/berth", "systemctl restart berth.service"},
		{"it was swapped again", "install /root/newer/berth /usr/local/bin/.next && mv /usr/local/bin/.next /usr/local/bin/berth", "systemctl restart berth.service"},
		{"a unit was changed", "touch /etc/systemd/system/berth.service", "systemctl daemon-reload\nsystemctl restart berth.service"},
	} {
		pid := o.show("MainPID")
		o.sh(half.line)
		if did := o.sh("berth install"); did != half.want {
			o.Errorf("where %s, an installation did\n%s\nwant\n%s", half.what, did, half.want)
		}
		if now := o.show("MainPID"); now == pid || o.sh("cmp /proc/"+now+"/exe /usr/local/bin/berth; berth install") != "berth is up to date: nothing to do" {
			o.Errorf("where %s, process %s became %s", half.what, pid, now)
		}
		o.running()
		o.unharmed(before)
	}
}

// hangs has each main loop hang in turn, as a bug would.
func hangs(o operator) {
	o.sh("mkdir -p /etc/systemd/system/berth.service.d && printf '[Service]\\nWatchdogSec=5\\n' >/etc/systemd/system/berth.service.d/short.conf && systemctl daemon-reload && systemctl restart berth")
	o.running()
	before := o.tasks()
	for _, loop := range []string{"agent", "room", "probes", "local store", "runtime status"} {
		pid := o.show("MainPID")
		o.sh("echo '" + loop + "' >/run/berth/stall")
		o.until("the watchdog to restart it for "+loop, "test $(systemctl show --value -p MainPID berth) != "+pid+" && systemctl is-active berth")
		o.running()
		o.unharmed(before)
		log := o.sh("journalctl -u berth --no-pager -o cat")
		why, acted := strings.LastIndex(log, loop+" made no progress for"), strings.LastIndex(log, "Watchdog timeout")
		if why < 0 || acted < why {
			o.Errorf("the log has to say that %s hung before systemd acts:\n%s", loop, log)
		}
		if blamed := o.sh("journalctl --no-pager -o cat _PID=" + pid + " | grep 'made no progress' | grep -v '" + loop + " made no progress'; true"); blamed != "" {
			o.Errorf("the log blames a loop that did not hang beside %s:\n%s", loop, blamed)
		}
	}
	o.sh("rm -r /etc/systemd/system/berth.service.d && systemctl daemon-reload && systemctl restart berth")
	o.unharmed(before)
}

func reboots(o operator) {
	before := o.tasks()
	if err := o.host.Reboot(o.Context()); err != nil {
		o.Fatal(err)
	}
	cameBack(o, before)
}

func losesPower(o operator) {
	before := o.tasks()
	if err := o.host.PowerLoss(o.Context()); err != nil {
		o.Fatal(err)
	}
	if err := o.host.Boot(o.Context()); err != nil {
		o.Fatal(err)
	}
	cameBack(o, before)
}

// goesDown has logind wait with a reboot until the pods have ended.
func goesDown(o operator) {
	o.sh("sed -i 's/^# maxPods: 110/shutdownGracePeriod: 20s/' /etc/berth/config.yaml && systemctl reload berth")
	o.until("logind to be asked to wait", "systemd-inhibit --list --no-pager | grep -w berth | grep -w delay")
	endsInOrder(o)
}

// goesDownAlone is the same with the drain unit only.
func goesDownAlone(o operator) {
	o.sh("systemctl mask --now systemd-logind")
	before := o.tasks()
	o.sh("systemctl restart berth berth-drain")
	o.running()
	o.unharmed(before)
	o.until("berth to say so", "journalctl -b -u berth -o cat --no-pager | grep 'only the drain unit delays a shutdown'")
	endsInOrder(o)
	o.sh("systemctl unmask systemd-logind && systemctl start systemd-logind")
}

// endsInOrder reboots, and checks that the pod ended before and runs again after.
func endsInOrder(o operator) {
	o.Helper()
	reboots(o)
	log := o.sh("journalctl -b -1 -u berth -o cat --no-pager")
	ended := log[strings.Index(log, "graceful shutdown started")+1:]
	if !strings.Contains(ended, `msg="graceful shutdown finished" pods=1 overdue=[]`) {
		o.Errorf("before the boot it said\n%s", log)
	}
	if got := o.sh("berth ps"); !strings.Contains(got, "Running") {
		o.Errorf("after the boot there is\n%s", got)
	}
}

// cameBack checks that the pod runs after a boot, in a container of its own and
// with one address.
func cameBack(o operator, before string) {
	o.Helper()
	o.until("the pod to come back", "ctr -n k8s.io tasks list -q | grep -q .")
	o.running()
	if now := o.tasks(); now == before || strings.Count(now, "RUNNING") != 2 {
		o.Errorf("containers before the boot:\n%s\nand after it:\n%s", before, now)
	}
	o.until("addresses to be those of pods that live", `test $(ls /var/lib/cni/networks/berth | grep -c '^10\.') = 1`)
}

func uninstalls(o operator) {
	would := o.sh("berth uninstall --dry-run")
	if out, err := o.host.RunWith(o.Context(), strings.NewReader("n\n"), "berth", "uninstall"); err == nil || !strings.Contains(out, would) {
		o.Errorf("a no was taken for a yes: %v\n%s", err, out)
	}
	o.sh("systemctl is-active berth && ctr -n k8s.io tasks list -q | grep .")
	did := o.sh("berth uninstall --yes")
	for step := range strings.SplitSeq(would, "\n") {
		if !strings.Contains(did, step) {
			o.Errorf("%q was announced, and not done:\n%s", step, did)
		}
	}
	if !strings.Contains(did, "containerd with its images") {
		o.Errorf("what stays is not named:\n%s", did)
	}
	nothingLeft(o)
	if again, err := os.Stat(filepath.Join(o.host.Root, "usr/local/bin/berth")); err == nil {
		o.Errorf("the program is there: %v", again)
	}
	o.sh("/root/newer/berth uninstall | grep 'not installed'")
}

// nothingLeft checks that the host has nothing of berth and its pods.
func nothingLeft(o operator) {
	o.Helper()
	for what, line := range map[string]string{
		"containers": "ctr -n k8s.io containers list -q", "processes of pods": "ctr -n k8s.io tasks list -q",
		"files": "ls -d /usr/local/bin/berth* /usr/bin/berth* /usr/lib/systemd/system/berth* /var/lib/systemd/deb-systemd-helper-*/berth* /var/lib/systemd/deb-systemd-helper-*/*/berth* " +
			"/usr/share/*/berth* /usr/share/man/man1/berth* /var/lib/dpkg/info/berth* /etc/berth* /var/lib/berth* /run/berth* /var/lib/kubelet* /var/log/pods /var/log/containers " +
			"/etc/systemd/system/berth* /etc/systemd/system/*.wants/berth* /etc/systemd/logind.conf.d /etc/cni/net.d/* /var/lib/cni/networks/* /var/lib/cni/results/* 2>/dev/null; true",
		"mounts":     "grep -E '/var/lib/kubelet|/run/berth|/run/netns' /proc/self/mountinfo; true",
		"cgroups":    "find /sys/fs/cgroup -name '*kubepods*'",
		"units":      "systemctl list-units --all --no-legend --plain 'berth*' 'kubepods*'",
		"links":      "ls /sys/class/net | grep -vE '^(lo|eth0|wire|bonding_masters)$'; true",
		"routes":     "ip route show table all proto 98; ip -6 route show table all proto 98",
		"rules":      "iptables-save -t nat | grep -E 'CNI-[0-9a-f]|name:.*berth'; true",
		"temp files": "ls -d /tmp/berth* /var/tmp/berth* 2>/dev/null; true",
	} {
		if left := o.sh(line); left != "" {
			o.Errorf("%s are left: %s", what, left)
		}
	}
	if left := o.masquerading(); left > 0 {
		o.Errorf("%d tables of nftables are left", left)
	}
	// As without a configuration of its own.
	o.until("logind to wait as it did before", "systemctl is-active systemd-logind && busctl get-property org.freedesktop.login1 /org/freedesktop/login1 org.freedesktop.login1.Manager InhibitDelayMaxUSec | grep -x 't 5000000'")
}

// masquerading is how many tables of nftables the host has that are berth's.
func (o operator) masquerading() (n int) {
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

// servesTheAPI is the control server's turn, on the host that the agent has left.
func servesTheAPI(o operator) {
	o.sh("/root/berth-control install")
	if state, status := o.sh("systemctl is-active berth-control"), o.sh("systemctl show --value -p StatusText berth-control"); state != "active" || status != "serving the API on [::]:6443" {
		o.Errorf("it is %s with status %q", state, status)
	}
	// The operator wants the token's line next.
	if line := o.sh("berth-control token create"); !strings.Contains(line, "berth join --server") {
		o.Errorf("a token: %s", line)
	}
	o.sh("kill -9 $(systemctl show --value -p MainPID berth-control)")
	o.until("systemd to restart it", "systemctl is-active berth-control && test $(systemctl show --value -p NRestarts berth-control) = 1")
	o.sh("mkdir -p /run/systemd/system/berth-control.service.d && printf '[Service]\\nWatchdogSec=5\\n' >/run/systemd/system/berth-control.service.d/short.conf && " +
		"systemctl daemon-reload && systemctl restart berth-control")
	pid := o.sh("systemctl show --value -p MainPID berth-control")
	o.sh("kill -STOP " + pid)
	o.until("the watchdog to restart it", "test $(systemctl show --value -p MainPID berth-control) != "+pid+" && systemctl is-active berth-control")
	o.sh("rm -r /run/systemd/system/berth-control.service.d && systemctl daemon-reload && systemctl restart berth-control")
	if again := o.sh("/root/berth-control install"); !strings.Contains(again, "nothing to do") {
		o.Errorf("a second installation: %s", again)
	}
	if said := o.sh("berth-control uninstall --yes"); !strings.Contains(said, "kept: /var/lib/berth-control") {
		o.Errorf("what stays is not named: %s", said)
	}
	o.sh("/root/berth-control install && berth-control uninstall --yes --purge")
	if left := o.sh("ls -d /usr/local/bin/berth* /etc/berth* /var/lib/berth* /run/berth* /etc/systemd/system/berth* /etc/systemd/system/*.wants/berth* 2>/dev/null; true"); left != "" {
		o.Errorf("left: %s", left)
	}
}
