package arch

import (
	"debug/buildinfo"
	"debug/elf"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
)

// TestBinarySizeAndLinkedModules builds berth with the flags of the Makefile and checks linkage, size and linked
// modules: for this machine, and with BERTH_TORTURE for both architectures, which compiles all packages again.
func TestBinarySizeAndLinkedModules(t *testing.T) {
	const version = "v0.0.1-test"
	flags, tags := linkFlags(t, version), variable(t, "TAGS")
	dir := t.TempDir()
	for arch, machine := range map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64} {
		if arch != runtime.GOARCH && os.Getenv("BERTH_TORTURE") == "" {
			continue
		}
		bin := filepath.Join(dir, arch)
		build := exec.CommandContext(t.Context(), "go", "build", "-trimpath", "-tags", tags, "-ldflags", flags,
			"-o", bin, "./cmd/berth")
		build.Dir = root
		build.Env = append(os.Environ(), "GOWORK=off", "CGO_ENABLED=0", "GOOS=linux", "GOARCH="+arch)
		if out, err := build.CombinedOutput(); err != nil {
			t.Fatalf("build for %s: %v\n%s", arch, err, out)
		}
		checkStatic(t, bin, machine)
		checkSizeAndModules(t, bin)
	}
	checkPackages(t, tags)

	// The command prints its own version, then exits with an error because no agent is running.
	command := []string{"--socket", filepath.Join(dir, "none.sock"), "version"}
	out, _ := exec.CommandContext(t.Context(), filepath.Join(dir, runtime.GOARCH), command...).CombinedOutput()
	if !strings.Contains(string(out), version) {
		t.Errorf("built with %s, berth version prints\n%s", flags, out)
	}
}

// linkFlags returns the LDFLAGS of the Makefile for a version.
func linkFlags(t *testing.T, version string) string {
	t.Helper()
	values := strings.NewReplacer("$(VERSION)", version, "$(COMMIT)", "abc1234", "$(DATE)", "2026-01-02T03:04:05Z")
	return values.Replace(variable(t, "LDFLAGS"))
}

// variable returns the value of a variable of the Makefile.
func variable(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, "Makefile"))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		key, value, found := strings.Cut(line, ":=")
		if found && strings.TrimSpace(key) == name {
			return strings.TrimSpace(value)
		}
	}
	t.Fatalf("the Makefile has no %s", name)
	return ""
}

// checkStatic checks the machine type and that the binary needs no dynamic loader.
func checkStatic(t *testing.T, bin string, machine elf.Machine) {
	t.Helper()
	f, err := elf.Open(bin)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if f.Machine != machine {
		t.Errorf("%s is for %s, want %s", bin, f.Machine, machine)
	}
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP {
			t.Errorf("%s requires a dynamic loader", bin)
		}
	}
	if libs, err := f.ImportedLibraries(); err != nil || len(libs) > 0 {
		t.Errorf("%s needs libraries: %v %v", bin, libs, err)
	}
}

// maxSize is the largest allowed size of the stripped binary in bytes. A program in which any function calls methods by
// a name that is not a constant, such as text/template, has 6 MB more: the linker keeps all methods of all types.
const maxSize = 41_000_000

// checkSizeAndModules checks the size of the binary and the linked modules.
func checkSizeAndModules(t *testing.T, bin string) {
	t.Helper()
	info, err := os.Stat(bin)
	if err != nil {
		t.Fatal(err)
	}
	if size := info.Size(); size > maxSize {
		t.Errorf("%s has %d bytes, at most %d are allowed", bin, size, maxSize)
	}
	linked, err := buildinfo.ReadFile(bin)
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range linked.Deps {
		for _, forbidden := range []string{
			"k8s.io/apiserver", "k8s.io/kubernetes", "go.etcd.io/etcd", "k8s.io/apiextensions-apiserver",
		} {
			if strings.HasPrefix(m.Path, forbidden) {
				t.Errorf("%s links %s", bin, m.Path)
			}
		}
	}
}

// linkedAPIs are the packages of k8s.io/api that the agent may link. Each other one adds up to 0.4 MB, because the
// linker keeps all types of a package, with all their methods.
var linkedAPIs = []string{
	"apps/v1", "authentication/v1", "authorization/v1", "batch/v1", "certificates/v1", "coordination/v1", "core/v1",
	"discovery/v1", "networking/v1", "node/v1", "storage/v1", // CSIDriver, CSINode, VolumeAttachment
	"scheduling/v1alpha3", // batch/v1 imports it
}

// checkPackages checks the API groups that the agent links, and that it does not link the full clientset.
func checkPackages(t *testing.T, tags string) {
	t.Helper()
	deps := exec.CommandContext(t.Context(), "go", "list", "-tags", tags, "-deps", "./cmd/berth")
	deps.Dir = root
	deps.Env = append(os.Environ(), "GOWORK=off", "CGO_ENABLED=0")
	out, err := deps.Output()
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	for pkg := range strings.FieldsSeq(string(out)) {
		if pkg == "k8s.io/client-go/kubernetes" || strings.HasPrefix(pkg, "k8s.io/client-go/informers") {
			t.Errorf("bin/berth links the full clientset: %s", pkg)
		}
		if group, ok := strings.CutPrefix(pkg, "k8s.io/api/"); ok {
			found++
			if !slices.Contains(linkedAPIs, group) {
				t.Errorf("bin/berth links the API group %s", pkg)
			}
		}
	}
	if found != len(linkedAPIs) {
		t.Errorf("bin/berth links %d API groups, linkedAPIs has %d", found, len(linkedAPIs))
	}
}
