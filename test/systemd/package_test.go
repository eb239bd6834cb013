package systemd

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"berth/systemd"
	"berth/test/hosts"
)

// A commit as git would describe it.
const (
	describe  = "v0.9.0"
	committed = "1767323045"
	stamp     = "2026-01-02 03:04"
)

// debs are packages of one commit and of a later one, by program.
type debs struct{ first, newer map[string]string }

// thePackages are made once for all tests, below work.
var thePackages = sync.OnceValues(func() (m debs, err error) {
	const all = "berth,berth-control"
	m.first, err = packages(context.Background(), work, describe, all, "022")
	if err != nil {
		return m, err
	}
	m.newer, err = packages(context.Background(), work, describe+"-3-gabc1234", all, "022")
	return m, err
})

// work is a directory that lives as long as this process.
var work string

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	var err error
	if work, err = os.MkdirTemp("", "berth-packages-"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer func() { _ = os.RemoveAll(work) }()
	return m.Run()
}

// packages makes packages for this machine, as make deb does, in a new directory below
// another, and returns their paths by program.
func packages(ctx context.Context, below, describe, programs, umask string) (map[string]string, error) {
	repo, err := hosts.RepoRoot()
	if err != nil {
		return nil, err
	}
	out, err := os.MkdirTemp(below, "packages-")
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, "sh", "-c", `umask "$0" && arch=$(dpkg --print-architecture) && exec go run -trimpath ./packaging -describe "$1" -time "$2" -ldflags "-s -w -X main.version=$1" -arch "$arch" -programs "$3" -out "$4"`,
		umask, describe, committed, programs, out)
	cmd.Dir = repo
	cmd.Env = append(os.Environ(), "GOFLAGS=-buildvcs=false", "CGO_ENABLED=0")
	if said, err := cmd.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("%w\n%s", err, said)
	}
	made := map[string]string{}
	for program := range strings.SplitSeq(programs, ",") {
		found, _ := filepath.Glob(filepath.Join(out, program+"_*.deb"))
		if len(found) != 1 {
			return nil, fmt.Errorf("packages of %s: %q", program, found)
		}
		made[program] = found[0]
	}
	return made, nil
}

// TestDebianPackages is a host on which berth was installed by itself, and
// what packages do there, in order.
func TestDebianPackages(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Minute)
	defer cancel()
	busybox := busyboxOf(ctx, t)
	own, err := hosts.BuildBerth(ctx, hosts.BuildOptions{})
	if err != nil {
		t.Fatal(err)
	}
	kubectl, err := hosts.Kubectl()
	if err != nil {
		t.Fatal(err)
	}
	both, err := thePackages()
	if err != nil {
		t.Fatal(err)
	}
	made, newer := both.first, both.newer
	t.Run("made again they are the same", func(t *testing.T) {
		again, err := packages(ctx, t.TempDir(), describe, "berth,berth-control", "077")
		if err != nil {
			t.Fatal(err)
		}
		for program, path := range made {
			same(t, path, again[program])
		}
	})
	t.Run("what is in them", func(t *testing.T) {
		for program, path := range made {
			contents(t, program, path)
		}
	})
	h := start(ctx, t, busybox.Path)
	if err := errors.Join(h.Copy(own, "/root/berth"), h.Copy(kubectl, "/usr/local/bin/kubectl"), h.Copy(made["berth"], "/root/berth.deb"), h.Copy(newer["berth"], "/root/newer.deb"),
		h.Copy(made["berth-control"], "/root/berth-control.deb"), h.WriteFile("/root/web.yaml", fmt.Sprintf(manifest, busybox.Ref)),
		h.WriteFile("/root/joined.yaml", fmt.Sprintf(joined, busybox.Ref)), h.WriteFile("/root/other.yaml", fmt.Sprintf(other, strings.TrimSuffix(h.Address, ".2")+".3"))); err != nil {
		t.Fatal(err)
	}
	for _, part := range []struct {
		name string
		do   func(operator)
	}{
		{"over an installation of berth itself", takesOver}, {"berth itself leaves it alone", keepsOff}, {"upgrade", isUpgraded}, {"remove", isRemoved},
		{"install again", isBack}, {"join", joins}, {"purge", isPurged}, {"purge a node with routes", isPurgedWithRoutes},
		{"purge without a runtime", isPurgedAlone},
	} {
		if !t.Run(part.name, func(t *testing.T) { part.do(operator{t, h}) }) {
			return
		}
	}
}

const joined = `apiVersion: v1
kind: Pod
metadata: {name: joined}
spec:
  terminationGracePeriodSeconds: 2
  containers:
  - name: main
    image: %s
    imagePullPolicy: Never
    command: [sh, -c, "trap exit TERM; while true; do sleep 1; done"]
`

// other is a node that only the server knows, on this host's network.
const other = `apiVersion: v1
kind: Node
metadata: {name: other}
spec: {podCIDR: 10.42.200.0/24, podCIDRs: [10.42.200.0/24]}
status:
  addresses: [{type: InternalIP, address: %s}]
`

func same(t *testing.T, a, b string) {
	t.Helper()
	x, err := os.ReadFile(a)
	if err != nil {
		t.Fatal(err)
	}
	y, err := os.ReadFile(b)
	if err != nil {
		t.Fatal(err)
	}
	if filepath.Base(a) != filepath.Base(b) || !bytes.Equal(x, y) {
		t.Errorf("%s (%d bytes) and %s (%d bytes) differ", a, len(x), b, len(y))
	}
}

// contents looks at a package without installing it.
func contents(t *testing.T, program, path string) {
	t.Helper()
	special := map[string]string{
		"./usr/bin/" + program: "-rwxr-xr-x", "./etc/" + program + "/config.yaml": "-rw-------", "./etc/berth/pods/": "drwx------",
	}
	var files []string
	for line := range strings.Lines(dpkgDeb(t, "--contents", path)) {
		f := strings.Fields(line)
		mode, owner, when, name := f[0], f[1], f[3]+" "+f[4], f[5]
		want := special[name]
		switch {
		case want != "":
		case strings.HasSuffix(name, "/"):
			want = "drwxr-xr-x"
		default:
			want = "-rw-r--r--"
		}
		if mode != want || owner != "root/root" || when != stamp {
			t.Errorf("%s has mode %s, owner %s, time %s; want %s, root/root, %s", name, mode, owner, when, want, stamp)
		}
		files = append(files, name)
	}
	for _, want := range []string{
		"./usr/bin/" + program, "./usr/lib/systemd/system/" + program + ".service", "./etc/" + program + "/config.yaml", "./usr/share/man/man1/" + program + ".1.gz",
		"./usr/share/bash-completion/completions/" + program, "./usr/share/zsh/vendor-completions/_" + program, "./usr/share/fish/vendor_completions.d/" + program + ".fish",
		"./usr/share/doc/" + program + "/copyright", "./usr/share/doc/" + program + "/changelog.gz",
	} {
		if !slices.Contains(files, want) {
			t.Errorf("%s has no %s: %q", program, want, files)
		}
	}
	root := filepath.Join(t.TempDir(), program)
	dpkgDeb(t, "--raw-extract", path, root)
	if conffiles, _ := os.ReadFile(filepath.Join(root, "DEBIAN/conffiles")); string(conffiles) != "/etc/"+program+"/config.yaml\n" {
		t.Errorf("its configuration files are %q", conffiles)
	}
	unit := map[string]string{"berth": systemd.Unit, "berth-control": systemd.ControlUnit}[program]
	if text, err := os.ReadFile(filepath.Join(root, "usr/lib/systemd/system", program+".service")); err != nil || string(text) != unit {
		t.Errorf("its unit is another: %v\n%s", err, text)
	}
	fields := dpkgDeb(t, "--field", path)
	for _, want := range []string{"Package: " + program + "\n", "Version: 0.9.0\n", "Maintainer: ", "Installed-Size: "} {
		if !strings.Contains(fields, want) {
			t.Errorf("it says not %q:\n%s", want, fields)
		}
	}
	if program == "berth" && !strings.Contains(fields, "\nRecommends: containerd (>= 1.6) | containerd.io, containernetworking-plugins") {
		t.Errorf("it does not recommend what it needs:\n%s", fields)
	}
	everyCommandHasAPage(t, filepath.Join(root, "usr/bin", program), filepath.Join(root, "usr/share/man/man1"))
}

func dpkgDeb(t *testing.T, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "dpkg-deb", args...)
	cmd.Env = append(os.Environ(), "TZ=UTC")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("dpkg-deb %q: %v\n%s", args, err, out)
	}
	return string(out)
}

// everyCommandHasAPage compares the program's help with its manual.
func everyCommandHasAPage(t *testing.T, program, manual string) {
	t.Helper()
	help, err := exec.CommandContext(t.Context(), program, "--help").Output()
	if err != nil {
		t.Fatal(err)
	}
	_, commands, _ := strings.Cut(string(help), "Available Commands:\n")
	commands, _, _ = strings.Cut(commands, "\n\n")
	if strings.Count(commands, "\n") < 4 {
		t.Errorf("its help has no commands:\n%s", help)
	}
	for line := range strings.Lines(commands) {
		name := strings.Fields(line)[0]
		if name == "help" {
			continue
		}
		text := page(t, filepath.Join(manual, filepath.Base(program)+"-"+name+".1.gz"))
		if !strings.Contains(text, ".TH ") || !strings.Contains(text, ".SH SYNOPSIS") {
			t.Errorf("the page of %s:\n%s", name, text)
		}
	}
	if _, err := exec.LookPath("groff"); err != nil {
		return
	}
	err = filepath.WalkDir(manual, func(path string, _ fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, ".gz") {
			return err
		}
		cmd := exec.CommandContext(t.Context(), "groff", "-man", "-Tutf8", "-k", "-W", "break") // a long word in a narrow column is no mistake
		cmd.Stdin = strings.NewReader(page(t, path))
		var complaints bytes.Buffer
		cmd.Stderr = &complaints
		if err := cmd.Run(); err != nil || complaints.Len() > 0 {
			t.Errorf("groff of %s: %v\n%s", path, err, complaints.String())
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// page is a manual page without its compression, in which no time is.
func page(t *testing.T, path string) string {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(z)
	if err != nil || z.Name != "" || !z.ModTime.IsZero() {
		t.Errorf("%s: %v; it has name %q and time %v", path, err, z.Name, z.ModTime)
	}
	return string(text)
}

// takesOver installs the package on a host that has berth by its own installer, with a pod and a changed configuration.
func takesOver(o operator) {
	o.sh("/root/berth install")
	o.sh("sed -i 's/^# cniPodCIDRs:/cniPodCIDRs:/; " + anyDisk + "' /etc/berth/config.yaml && systemctl reload berth && cp /root/web.yaml /etc/berth/pods/")
	o.running()
	before, config := o.tasks(), o.sh("cat /etc/berth/config.yaml")
	o.sh("dpkg -i --force-confold /root/berth.deb")
	o.running()
	o.unharmed(before)
	o.sh("! test -e /usr/local/bin/berth && ! test -e /etc/systemd/system/berth.service && ! test -e /etc/systemd/system/berth-drain.service")
	if now := o.sh("cat /etc/berth/config.yaml"); now != config {
		o.Errorf("the configuration was\n%s\nand is\n%s", config, now)
	}
	inPlace(o, "v0.9.0")
	if modes := o.sh("stat -c '%a %U' /etc/berth/config.yaml /etc/berth/pods"); modes != "600 root\n700 root" {
		o.Errorf("modes: %s", modes)
	}
	o.sh("for f in /usr/share/bash-completion/completions/berth*; do bash -n $f || exit 1; done; dpkg --verify berth | grep -v /etc/berth/config.yaml && exit 1; true")
}

// inPlace checks that the service is the package's, with a program of that version.
func inPlace(o operator, version string) {
	o.Helper()
	// The program that runs, not the one that lies there.
	if exe := o.sh("readlink /proc/" + o.show("MainPID") + "/exe"); exe != "/usr/bin/berth" {
		o.Errorf("what runs is %s", exe)
	}
	if got := o.sh("berth version"); strings.Count(got, "berth "+version+",") != 2 {
		o.Errorf("want version %s of client and agent:\n%s", version, got)
	}
	if units := o.sh("systemctl is-enabled berth berth-drain; systemctl is-active berth berth-drain; systemctl show --value -p FragmentPath berth"); units != "enabled\nenabled\nactive\nactive\n/lib/systemd/system/berth.service" &&
		units != "enabled\nenabled\nactive\nactive\n/usr/lib/systemd/system/berth.service" {
		o.Errorf("its units: %s", units)
	}
	if links := o.sh("readlink /etc/systemd/system/multi-user.target.wants/berth*.service"); strings.Contains(links, "/etc/") {
		o.Errorf("links to units that are gone: %s", links)
	}
}

// keepsOff has berth's own installer tried on it.
func keepsOff(o operator) {
	before := o.tasks()
	for _, line := range []string{"/root/berth install", "/root/berth install --dry-run", "berth install", "berth uninstall --yes"} {
		out, err := o.host.Run(o.Context(), "sh", "-c", line)
		if err == nil || !strings.Contains(err.Error(), "berth was installed from a package") || !strings.Contains(err.Error(), "apt purge berth") {
			o.Errorf("%s: %v\n%s", line, err, out)
		}
	}
	inPlace(o, "v0.9.0")
	o.unharmed(before)
}

func isUpgraded(o operator) {
	before, pid, config := o.tasks(), o.show("MainPID"), o.sh("cat /etc/berth/config.yaml")
	o.sh("dpkg -i /root/newer.deb </dev/null") // no prompt
	o.running()
	o.unharmed(before)
	if now := o.show("MainPID"); now == pid {
		o.Error("the old program runs still")
	}
	if now := o.sh("cat /etc/berth/config.yaml"); now != config {
		o.Errorf("the configuration was\n%s\nand is\n%s", config, now)
	}
	inPlace(o, "v0.9.0-3-gabc1234")
	// An administrator's choice outlives the next one.
	o.sh("systemctl disable --now berth-drain && dpkg -i /root/newer.deb </dev/null")
	if got := o.sh("systemctl is-enabled berth-drain; true"); got != "disabled" {
		o.Errorf("a unit that was disabled is %s", got)
	}
	o.sh("systemctl enable --now berth-drain")
	o.running()
	o.unharmed(before)
}

// isRemoved leaves the containers as stopping the service does.
func isRemoved(o operator) {
	before := o.tasks()
	if said := o.sh("dpkg -r berth"); !strings.Contains(said, "containers keep running") {
		o.Errorf("that they do is not said:\n%s", said)
	}
	o.unharmed(before)
	o.sh("! test -e /usr/bin/berth && ! test -e /usr/lib/systemd/system/berth.service && test -e /etc/berth/config.yaml && test -e /etc/berth/pods/web.yaml")
	if state := o.sh("systemctl is-active berth; true"); state != "inactive" {
		o.Errorf("the service is %s", state)
	}
}

func isBack(o operator) {
	before := o.tasks()
	o.sh("dpkg -i /root/newer.deb </dev/null")
	o.running()
	o.unharmed(before)
	inPlace(o, "v0.9.0-3-gabc1234")
	o.sh("! test -e /var/lib/berth/package")
}

// joins makes the host a node of a server that is a package too, line by line as a user would.
func joins(o operator) {
	before := o.tasks()
	o.sh("dpkg -i /root/berth-control.deb")
	if state, config := o.sh("systemctl is-active berth-control"), o.sh("stat -c %a /etc/berth-control/config.yaml"); state != "active" || config != "600" {
		o.Errorf("berth-control is %s, the mode of its configuration %s", state, config)
	}
	line := o.sh("berth-control token create")
	if !strings.HasPrefix(line, "berth join --server https://"+o.host.Address+":6443 ") {
		o.Errorf("the line for the node: %s", line)
	}
	if said := o.sh(line); !strings.Contains(said, "systemctl restart berth") {
		o.Errorf("what comes next is not said: %s", said)
	}
	o.sh("systemctl restart berth")
	const kubectl = "kubectl --kubeconfig /var/lib/berth-control/admin.kubeconfig "
	o.until("the node to be ready", kubectl+"get nodes --no-headers | grep -E '^"+o.host.Name+" +Ready '")
	o.until("the pod to be taken", kubectl+"apply -f /root/joined.yaml")
	o.until("the pod to run", kubectl+"get pod joined --no-headers | grep -E '^joined +1/1 +Running '")
	o.until("the pod of a file to run on, under the name that a server knows it by", "berth ps | grep -E 'web-"+o.host.Name+" .*1/1 .*Running'")
	now := words(o.tasks())
	for task := range strings.Lines(before) {
		if !strings.Contains(now, words(task)) {
			o.Errorf("a container of before is gone: %s\n%s", task, now)
		}
	}
}

// words is a text whatever the width of its columns.
func words(text string) string { return strings.Join(strings.Fields(text), " ") }

// isPurged has everything go, in two steps as the first is the harder one: the program is not there at the second.
func isPurged(o operator) {
	before := o.tasks()
	o.sh("dpkg -r berth")
	o.unharmed(before)
	if said := o.sh("dpkg -P berth"); !strings.Contains(said, "terminate all pods") || !strings.Contains(said, "containerd with its images") {
		o.Errorf("what was done and what stays is not said:\n%s", said)
	}
	o.sh("dpkg -r berth-control && test -e /var/lib/berth-control/admin.kubeconfig && dpkg -P berth-control")
	nothingLeft(o)
	if known := o.sh("dpkg-query -l 'berth*' 2>/dev/null | grep '^.[^n]'; true"); strings.Contains(known, "\nii") || strings.Contains(known, "\nrc") {
		o.Errorf("dpkg knows them still:\n%s", known)
	}
}

// isPurgedWithRoutes is a node with all that berth makes outside of its own folders, and with folders of
// the operator's choice, in one of which a file of theirs lies.
func isPurgedWithRoutes(o operator) {
	const kubectl = "kubectl --kubeconfig /var/lib/berth-control/admin.kubeconfig "
	o.sh("dpkg -i /root/berth.deb /root/berth-control.deb && mkdir -p /srv/state && echo mine >/srv/state/mine")
	o.sh(`sed -i 's/^# cniPodCIDRs: .*/cniPodCIDRs: [node]\nstateDir: \/srv\/state\ncertDir: \/srv\/certs/; s/^# maxPods: 110/shutdownGracePeriod: 20s/; ` + anyDisk + `' /etc/berth/config.yaml`)
	o.sh(o.sh("berth-control token create"))
	o.sh("cp /root/web.yaml /etc/berth/pods/ && systemctl restart berth")
	o.until("the node to be ready", kubectl+"get nodes --no-headers | grep -E '^"+o.host.Name+" +Ready '")
	o.sh(kubectl + "create -f /root/other.yaml && " + kubectl + `patch node other --subresource=status --type=merge -p "$(` + kubectl + "create --dry-run=client -o json -f /root/other.yaml)\"")
	o.until("the route to the other node's pods", "ip route show proto 98 | grep -w 10.42.200.0/24")
	o.until("the pod to run", "berth ps | grep -E 'web-"+o.host.Name+" .*1/1 .*Running'")
	o.until("logind to be asked to wait", "test -e /etc/systemd/logind.conf.d/99-berth.conf && systemd-inhibit --list --no-pager | grep -w berth")
	o.sh("ls /sys/class/net/cni0 /srv/state/berth.db /srv/state/installation /srv/state/pod-routes.json /srv/certs/kubelet-client-current.pem")
	if n := o.masquerading(); n == 0 {
		o.Error("nothing masquerades: to look for what is left would prove nothing")
	}
	if said := o.sh("dpkg -P berth berth-control"); !strings.Contains(said, "/srv/state: contains mine, which does not belong to berth") {
		o.Errorf("what stays is not said:\n%s", said)
	}
	nothingLeft(o)
	if left := o.sh("find /srv -mindepth 1 | sort"); left != "/srv/state\n/srv/state/mine" {
		o.Errorf("left in the folders of one's own choice:\n%s", left)
	}
}

// isPurgedAlone has no runtime that could end pods: it must not hang, nor fail for ever.
func isPurgedAlone(o operator) {
	o.sh("dpkg -i /root/berth.deb && systemctl is-active berth && systemctl stop containerd")
	if said := o.sh("dpkg -P berth"); !strings.Contains(said, "the runtime is unavailable") {
		o.Errorf("what may run still is not said:\n%s", said)
	}
	if left := o.sh("ls -d /usr/bin/berth /etc/berth /var/lib/berth /run/berth 2>/dev/null; true"); left != "" {
		o.Errorf("left: %s", left)
	}
}
