package arch

import (
	"debug/buildinfo"
	"debug/elf"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

// TestBinarySizeAndLinkedModules builds berth for both architectures with the flags of the
// Makefile and checks linkage, size and linked modules.
func TestBinarySizeAndLinkedModules(t *testing.T) {
	const version = "v0.0.1-test"
	flags := linkFlags(t, version)
	dir := t.TempDir()
	for arch, machine := range map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64} {
		bin := filepath.Join(dir, arch)
		build := exec.CommandContext(t.Context(), "go", "build", "-trimpath", "-ldflags", flags, "-o", bin,
			"./cmd/berth")
		build.Dir = root
		build.Env = append(os.Environ(), "GOWORK=off", "CGO_ENABLED=0", "GOOS=linux", "GOARCH="+arch)
		if out, err := build.CombinedOutput(); err != nil {
			t.Fatalf("build for %s: %v\n%s", arch, err, out)
		}
		checkStatic(t, bin, machine)
		checkSizeAndModules(t, bin)
	}
	checkNoClientset(t)

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
	text, err := os.ReadFile(filepath.Join(root, "Makefile"))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if flags, ok := strings.CutPrefix(line, "LDFLAGS := "); ok {
			values := strings.NewReplacer("$(VERSION)", version, "$(COMMIT)", "abc1234", "$(DATE)",
				"2026-01-02T03:04:05Z")
			return values.Replace(strings.TrimSpace(flags))
		}
	}
	t.Fatal("the Makefile has no LDFLAGS")
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

// checkSizeAndModules checks the size of the binary and the linked modules.
func checkSizeAndModules(t *testing.T, bin string) {
	t.Helper()
	info, err := os.Stat(bin)
	if err != nil {
		t.Fatal(err)
	}
	if mb := info.Size() >> 20; mb > 45 {
		t.Errorf("%s has %d MiB, at most 45 are allowed", bin, mb)
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

func checkNoClientset(t *testing.T) {
	t.Helper()
	deps := exec.CommandContext(t.Context(), "go", "list", "-deps", "./cmd/berth")
	deps.Dir = root
	deps.Env = append(os.Environ(), "GOWORK=off", "CGO_ENABLED=0")
	out, err := deps.Output()
	if err != nil {
		t.Fatal(err)
	}
	for pkg := range strings.FieldsSeq(string(out)) {
		if pkg == "k8s.io/client-go/kubernetes" || strings.HasPrefix(pkg, "k8s.io/client-go/informers") {
			t.Errorf("bin/berth links the full clientset: %s", pkg)
		}
	}
}
