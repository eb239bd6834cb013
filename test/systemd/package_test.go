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
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"berth/systemd"
	"berth/test/hosts"
)

// Version and time of the commit that the packages are built from.
const (
	describe   = "v0.9.0"
	commitTime = "1767323045"
	stamp      = "2026-01-02 03:04"
)

// debs are the paths of the packages of one commit and of a later one, by program.
type debs struct{ first, newer map[string]string }

// builtPackages builds the packages for all tests, once per process, below workDir.
var builtPackages = sync.OnceValues(func() (m debs, err error) {
	m.first, err = packages(context.Background(), workDir, describe, "berth,berth-control", "022")
	if err != nil {
		return m, err
	}
	m.newer, err = packages(context.Background(), workDir, describe+"-3-gabc1234", "berth,berth-control", "022")
	return m, err
})

// workDir is removed when the process exits.
var workDir string

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	var err error
	if workDir, err = os.MkdirTemp("", "berth-packages-"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer func() { _ = os.RemoveAll(workDir) }()
	return m.Run()
}

// packages builds packages for this machine, as make deb does, in a new directory below another one.
// It returns their paths by program.
func packages(ctx context.Context, below, describe, programs, umask string) (map[string]string, error) {
	repo, err := hosts.RepoRoot()
	if err != nil {
		return nil, err
	}
	out, err := os.MkdirTemp(below, "packages-")
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, "sh", "-c", `umask "$0" && arch=$(dpkg --print-architecture) && exec go run `+
		`-trimpath ./packaging -describe "$1" -time "$2" -ldflags "-s -w -X main.version=$1" -tags grpcnotrace `+
		`-arch "$arch" -programs `+
		`"$3" -out "$4"`,
		umask, describe, commitTime, programs, out)
	cmd.Dir = repo
	cmd.Env = append(os.Environ(), "GOFLAGS=-buildvcs=false", "CGO_ENABLED=0")
	if text, err := cmd.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("build packages: %w\n%s", err, text)
	}
	built := map[string]string{}
	for program := range strings.SplitSeq(programs, ",") {
		found, _ := filepath.Glob(filepath.Join(out, program+"_*.deb"))
		if len(found) != 1 {
			return nil, fmt.Errorf("got packages %q of %s, want one", found, program)
		}
		built[program] = found[0]
	}
	return built, nil
}

// TestDebianPackages installs, upgrades, removes and purges the packages on one host, on which berth
// was first installed by its own installer. Each step depends on the steps before it.
func TestDebianPackages(t *testing.T) {
	t.Parallel()
	own, err := hosts.BuildBerth(t.Context(), hosts.BuildOptions{})
	if err != nil {
		t.Fatal(err)
	}
	kubectl, err := hosts.Kubectl()
	if err != nil {
		t.Fatal(err)
	}
	both, err := builtPackages()
	if err != nil {
		t.Fatal(err)
	}
	built, newer := both.first, both.newer
	// Without the builds, which take long with an empty build cache.
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Minute)
	defer cancel()
	busybox := busyboxImage(ctx, t)
	t.Run("builds are reproducible", func(t *testing.T) {
		if os.Getenv("BERTH_TORTURE") == "" {
			t.Skip("builds a package again: make torture PKGS=./test/systemd RUN=TestDebianPackages")
		}
		again, err := packages(ctx, t.TempDir(), describe, "berth", "077") // the other is built in the same way
		if err != nil {
			t.Fatal(err)
		}
		same(t, built["berth"], again["berth"])
	})
	t.Run("contents", func(t *testing.T) {
		for program, path := range built {
			contents(t, program, path)
		}
	})
	h := start(ctx, t, busybox.Path)
	if err := errors.Join(h.Copy(own, "/root/berth"), h.Copy(kubectl, "/usr/local/bin/kubectl"),
		h.Copy(built["berth"], "/root/berth.deb"), h.Copy(newer["berth"], "/root/newer.deb"),
		h.Copy(built["berth-control"], "/root/berth-control.deb"), h.WriteFile("/root/web.yaml",
			fmt.Sprintf(manifest, busybox.Ref)),
		h.WriteFile("/root/joined.yaml", fmt.Sprintf(joined, busybox.Ref)),
		h.WriteFile("/root/other.yaml", fmt.Sprintf(other, strings.TrimSuffix(h.Address, ".2")+".3"))); err != nil {
		t.Fatal(err)
	}
	for _, step := range []struct {
		name string
		do   func(operator)
	}{
		{"install over berth's own installation", installOverOwnInstallation},
		{"berth's own installer is rejected", rejectOwnInstaller},
		{"upgrade", upgradePackage}, {"remove", removePackage}, {"install again", reinstallPackage}, {"join", joinNode},
		{"purge", purgePackages}, {"purge a node with routes", purgeWithRoutes},
		{"purge without a runtime", purgeWithoutRuntime},
	} {
		if !t.Run(step.name, func(t *testing.T) { step.do(operator{t, h}) }) {
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

// other is a Node object without a machine. Its address is on this host's network.
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

// contents checks the files and control fields of a package.
func contents(t *testing.T, program, path string) {
	t.Helper()
	special := map[string]string{
		"./usr/bin/" + program: "-rwxr-xr-x", "./etc/" + program + "/config.yaml": "-rw-------",
		"./etc/berth/pods/": "drwx------",
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
		"./usr/bin/" + program, "./usr/lib/systemd/system/" + program + ".service", "./etc/" + program + "/config.yaml",
		"./usr/share/man/man1/" + program + ".1.gz",
		"./usr/share/bash-completion/completions/" + program, "./usr/share/zsh/vendor-completions/_" + program,
		"./usr/share/fish/vendor_completions.d/" + program + ".fish",
		"./usr/share/doc/" + program + "/copyright", "./usr/share/doc/" + program + "/changelog.gz",
	} {
		if !slices.Contains(files, want) {
			t.Errorf("%s has no %s: %q", program, want, files)
		}
	}
	root := filepath.Join(t.TempDir(), program)
	dpkgDeb(t, "--raw-extract", path, root)
	if conffiles, _ := os.ReadFile(filepath.Join(root, "DEBIAN/conffiles")); string(conffiles) != "/etc/"+program+
		"/config.yaml\n" {
		t.Errorf("conffiles of %s: got %q, want only config.yaml", program, conffiles)
	}
	unit := map[string]string{"berth": systemd.Unit, "berth-control": systemd.ControlUnit}[program]
	if text, err := os.ReadFile(filepath.Join(root, "usr/lib/systemd/system", program+".service")); err != nil ||
		string(text) != unit {
		t.Errorf("the packaged unit of %s differs from package systemd: %v\n%s", program, err, text)
	}
	fields := dpkgDeb(t, "--field", path)
	for _, want := range []string{"Package: " + program + "\n", "Version: 0.9.0\n", "Maintainer: ",
		"Installed-Size: "} {
		if !strings.Contains(fields, want) {
			t.Errorf("control fields do not contain %q:\n%s", want, fields)
		}
	}
	if program == "berth" && !strings.Contains(fields,
		"\nRecommends: containerd (>= 1.6) | containerd.io, containernetworking-plugins") {
		t.Errorf("field Recommends does not list containerd and CNI plugins:\n%s", fields)
	}
	checkManualPages(t, filepath.Join(root, "usr/bin", program), filepath.Join(root, "usr/share/man/man1"))
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

// checkManualPages checks that every command in the program's help has a manual page and that groff
// accepts all pages.
func checkManualPages(t *testing.T, program, manual string) {
	t.Helper()
	help, err := exec.CommandContext(t.Context(), program, "--help").Output()
	if err != nil {
		t.Fatal(err)
	}
	_, commands, _ := strings.Cut(string(help), "\nUsage:\n")
	_, commands, _ = strings.Cut(commands, "\n\n")
	commands, _, _ = strings.Cut(commands, "\nFlags:\n")
	names := regexp.MustCompile(`(?m)^  ([a-z-]+) +[A-Z]`).FindAllStringSubmatch(commands, -1)
	if len(names) < 4 {
		t.Errorf("the help of %s lists no commands:\n%s", program, help)
	}
	for _, match := range names {
		name := match[1]
		if name == "help" {
			continue
		}
		text := page(t, filepath.Join(manual, filepath.Base(program)+"-"+name+".1.gz"))
		if !strings.Contains(text, ".TH ") || !strings.Contains(text, ".SH SYNOPSIS") {
			t.Errorf("manual page of %s has no title or synopsis:\n%s", name, text)
		}
	}
	if _, err := exec.LookPath("groff"); err != nil {
		return
	}
	err = filepath.WalkDir(manual, func(path string, _ fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, ".gz") {
			return err
		}
		// -W break ignores long words in narrow columns.
		cmd := exec.CommandContext(t.Context(), "groff", "-man", "-Tutf8", "-k", "-W", "break")
		cmd.Stdin = strings.NewReader(page(t, path))
		var warnings bytes.Buffer
		cmd.Stderr = &warnings
		if err := cmd.Run(); err != nil || warnings.Len() > 0 {
			t.Errorf("groff warnings for %s: %v\n%s", path, err, warnings.String())
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// page returns the text of a compressed manual page. The gzip header must have neither name nor time,
// which would make the build irreproducible.
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
		t.Errorf("gzip header of %s: got name %q, time %v, error %v; want none", path, z.Name, z.ModTime, err)
	}
	return string(text)
}

// installOverOwnInstallation installs the package on a host where berth was installed by its own
// installer, with a running pod and a changed configuration.
func installOverOwnInstallation(o operator) {
	o.sh("/root/berth install")
	o.sh("sed -i 's/^# cniPodCIDRs:/cniPodCIDRs:/; " + ignoreDiskUsage +
		"' /etc/berth/config.yaml && systemctl reload berth && cp /root/web.yaml /etc/berth/pods/")
	o.waitRunning()
	before, config := o.tasks(), o.sh("cat /etc/berth/config.yaml")
	o.sh("dpkg -i --force-confold /root/berth.deb")
	o.waitRunning()
	o.checkNotRestarted(before)
	o.sh("! test -e /usr/local/bin/berth && ! test -e /etc/systemd/system/berth.service && ! test -e " +
		"/etc/systemd/system/berth-drain.service")
	if now := o.sh("cat /etc/berth/config.yaml"); now != config {
		o.Errorf("the configuration changed from\n%s\nto\n%s", config, now)
	}
	checkPackageService(o, "v0.9.0")
	if modes := o.sh("stat -c '%a %U' /etc/berth/config.yaml /etc/berth/pods"); modes != "600 root\n700 root" {
		o.Errorf("modes: %s", modes)
	}
	o.sh("for f in /usr/share/bash-completion/completions/berth*; do bash -n $f || exit 1; done; dpkg --verify berth " +
		"| grep -v /etc/berth/config.yaml && exit 1; true")
}

// checkPackageService checks that the service runs the program of the package in that version.
func checkPackageService(o operator, version string) {
	o.Helper()
	// The running program, not the file on disk.
	if exe := o.sh("readlink /proc/" + o.show("MainPID") + "/exe"); exe != "/usr/bin/berth" {
		o.Errorf("the service runs %s, want /usr/bin/berth", exe)
	}
	if got := o.sh("berth version"); strings.Count(got, "berth "+version+",") != 2 {
		o.Errorf("got versions\n%s\nwant %s for client and agent", got, version)
	}
	if units := o.sh("systemctl is-enabled berth berth-drain; systemctl is-active berth berth-drain; systemctl show " +
		"--value -p FragmentPath berth"); units !=
		"enabled\nenabled\nactive\nactive\n/lib/systemd/system/berth.service" &&
		units != "enabled\nenabled\nactive\nactive\n/usr/lib/systemd/system/berth.service" {
		o.Errorf("units are not enabled, active and from the package: %s", units)
	}
	if links := o.sh("readlink /etc/systemd/system/multi-user.target.wants/berth*.service"); strings.Contains(links,
		"/etc/") {
		o.Errorf("links to deleted units: %s", links)
	}
}

// rejectOwnInstaller checks that berth's own installer does not change an installed package.
func rejectOwnInstaller(o operator) {
	before := o.tasks()
	for _, line := range []string{"/root/berth install", "/root/berth install --dry-run", "berth install",
		"berth uninstall --yes"} {
		out, err := o.host.Run(o.Context(), "sh", "-c", line)
		if err == nil || !strings.Contains(err.Error(), "berth was installed from a package") ||
			!strings.Contains(err.Error(), "apt purge berth") {
			o.Errorf("%s: %v\n%s", line, err, out)
		}
	}
	checkPackageService(o, "v0.9.0")
	o.checkNotRestarted(before)
}

func upgradePackage(o operator) {
	before, pid, config := o.tasks(), o.show("MainPID"), o.sh("cat /etc/berth/config.yaml")
	o.sh("dpkg -i /root/newer.deb </dev/null") // no prompt
	o.waitRunning()
	o.checkNotRestarted(before)
	if now := o.show("MainPID"); now == pid {
		o.Error("the service still runs the old program")
	}
	if now := o.sh("cat /etc/berth/config.yaml"); now != config {
		o.Errorf("the configuration changed from\n%s\nto\n%s", config, now)
	}
	checkPackageService(o, "v0.9.0-3-gabc1234")
	// An upgrade keeps a unit disabled.
	o.sh("systemctl disable --now berth-drain && dpkg -i /root/newer.deb </dev/null")
	if got := o.sh("systemctl is-enabled berth-drain; true"); got != "disabled" {
		o.Errorf("a disabled unit is %s after an upgrade", got)
	}
	o.sh("systemctl enable --now berth-drain")
	o.waitRunning()
	o.checkNotRestarted(before)
}

// removePackage removes the package. Containers and configuration stay, as after a stop of the service.
func removePackage(o operator) {
	before := o.tasks()
	if output := o.sh("dpkg -r berth"); !strings.Contains(output, "containers keep running") {
		o.Errorf("dpkg -r does not print that containers keep running:\n%s", output)
	}
	o.checkNotRestarted(before)
	o.sh("! test -e /usr/bin/berth && ! test -e /usr/lib/systemd/system/berth.service && test -e " +
		"/etc/berth/config.yaml && test -e /etc/berth/pods/web.yaml")
	if state := o.sh("systemctl is-active berth; true"); state != "inactive" {
		o.Errorf("the service is %s", state)
	}
}

func reinstallPackage(o operator) {
	before := o.tasks()
	o.sh("dpkg -i /root/newer.deb </dev/null")
	o.waitRunning()
	o.checkNotRestarted(before)
	checkPackageService(o, "v0.9.0-3-gabc1234")
	o.sh("! test -e /var/lib/berth/package")
}

// joinNode installs the server package on the same host and joins the node with the printed command.
func joinNode(o operator) {
	before := o.tasks()
	o.sh("dpkg -i /root/berth-control.deb")
	if state, config := o.sh("systemctl is-active berth-control"),
		o.sh("stat -c %a /etc/berth-control/config.yaml"); state != "active" || config != "600" {
		o.Errorf("berth-control is %s, the mode of its configuration %s", state, config)
	}
	line := o.sh("berth-control token create")
	if !strings.HasPrefix(line, "berth join --server https://"+o.host.Address+":6443 ") {
		o.Errorf("token create prints %q, want a berth join command", line)
	}
	if output := o.sh(line); !strings.Contains(output, "systemctl restart berth") {
		o.Errorf("berth join does not print how to restart berth: %s", output)
	}
	o.sh("systemctl restart berth")
	const kubectl = "kubectl --kubeconfig /var/lib/berth-control/admin.kubeconfig "
	o.until("the node to be ready", kubectl+"get nodes --no-headers | grep -E '^"+o.host.Name+" +Ready '")
	o.until("the pod to be accepted by the server", kubectl+"apply -f /root/joined.yaml")
	o.until("the pod to run", kubectl+"get pod joined --no-headers | grep -E '^joined +1/1 +Running '")
	o.until("the static pod to keep running under its mirror pod name",
		"berth ps | grep -E 'web-"+o.host.Name+" .*1/1 .*Running'")
	now := words(o.tasks())
	for task := range strings.Lines(before) {
		if !strings.Contains(now, words(task)) {
			o.Errorf("container was restarted or deleted: %s\n%s", task, now)
		}
	}
}

// words returns a text with single spaces, independent of column widths.
func words(text string) string { return strings.Join(strings.Fields(text), " ") }

// purgePackages removes the packages, then purges them: when purge runs, the program no longer exists.
func purgePackages(o operator) {
	before := o.tasks()
	o.sh("dpkg -r berth")
	o.checkNotRestarted(before)
	if output := o.sh("dpkg -P berth"); !strings.Contains(output, "terminate all pods") ||
		!strings.Contains(output, "containerd with its images") {
		o.Errorf("dpkg -P does not print what it did and what it keeps:\n%s", output)
	}
	o.sh("dpkg -r berth-control && test -e /var/lib/berth-control/admin.kubeconfig && dpkg -P berth-control")
	checkNothingLeft(o)
	if known := o.sh("dpkg-query -l 'berth*' 2>/dev/null | grep '^.[^n]'; true"); strings.Contains(known, "\nii") ||
		strings.Contains(known, "\nrc") {
		o.Errorf("dpkg still lists the packages:\n%s", known)
	}
}

// purgeWithRoutes purges a node with everything that berth creates outside of its own directories and
// with configured directories, one of which contains a file of the operator.
func purgeWithRoutes(o operator) {
	const kubectl = "kubectl --kubeconfig /var/lib/berth-control/admin.kubeconfig "
	o.sh("dpkg -i /root/berth.deb /root/berth-control.deb && mkdir -p /srv/state && echo mine >/srv/state/mine")
	o.sh(`sed -i 's/^# cniPodCIDRs: .*/cniPodCIDRs: [node]\nstateDir: \/srv\/state\ncertDir: \/srv\/certs/; ` +
		`s/^# maxPods: 110/shutdownGracePeriod: 20s/; ` + ignoreDiskUsage + `' /etc/berth/config.yaml`)
	o.sh(o.sh("berth-control token create"))
	o.sh("cp /root/web.yaml /etc/berth/pods/ && systemctl restart berth")
	o.until("the node to be ready", kubectl+"get nodes --no-headers | grep -E '^"+o.host.Name+" +Ready '")
	o.sh(kubectl + "create -f /root/other.yaml && " + kubectl +
		`patch node other --subresource=status --type=merge -p "$(` + kubectl +
		"create --dry-run=client -o json -f /root/other.yaml)\"")
	o.until("the route to the other node's pods", "ip route show proto 98 | grep -w 10.42.200.0/24")
	o.until("the pod to run", "berth ps | grep -E 'web-"+o.host.Name+" .*1/1 .*Running'")
	o.until("logind to be asked to wait", "test -e /etc/systemd/logind.conf.d/99-berth.conf && systemd-inhibit "+
		"--list --no-pager | grep -w berth")
	o.sh("ls /sys/class/net/cni0 /srv/state/berth.db /srv/state/installation /srv/state/pod-routes.json " +
		"/srv/certs/kubelet-client-current.pem")
	if n := o.nftablesTables(); n == 0 {
		o.Error("no nftables table before the purge: the check for leaks would be meaningless")
	}
	if output := o.sh("dpkg -P berth berth-control"); !strings.Contains(output,
		"/srv/state: contains mine, which does not belong to berth") {
		o.Errorf("dpkg -P does not name the directory that it keeps:\n%s", output)
	}
	checkNothingLeft(o)
	if left := o.sh("find /srv -mindepth 1 | sort"); left != "/srv/state\n/srv/state/mine" {
		o.Errorf("left in the configured directories:\n%s", left)
	}
}

// purgeWithoutRuntime purges while the runtime is stopped: purge must neither hang nor fail.
func purgeWithoutRuntime(o operator) {
	o.sh("dpkg -i /root/berth.deb && systemctl is-active berth && systemctl stop containerd")
	if output := o.sh("dpkg -P berth"); !strings.Contains(output, "the runtime is unavailable") {
		o.Errorf("dpkg -P does not print that containers may still run:\n%s", output)
	}
	if left := o.sh("ls -d /usr/bin/berth /etc/berth /var/lib/berth /run/berth 2>/dev/null; true"); left != "" {
		o.Errorf("left: %s", left)
	}
}
