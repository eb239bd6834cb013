package install

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func berth(dir string) Spec {
	return Spec{
		Name: "berth", Source: "/root/berth", Unit: "[Service]\nExecStart=/usr/bin/berth run\n",
		Config:     "# all defaults\n",
		ConfigFile: filepath.Join(dir, "etc/berth/config.yaml"),
		Dirs:       []Dir{{filepath.Join(dir, "etc/berth"), 0o755}, {filepath.Join(dir, "etc/berth/pods"), 0o700}},
		Layout:     Layout{Programs: filepath.Join(dir, "bin"), Units: filepath.Join(dir, "units")},
		ExtraUnits: []Unit{{Name: "berth-drain.service", Content: "[Service]\nExecStop=/usr/bin/berth drain\n"}},
	}
}

func sentences(steps []Step) (out []string) {
	for _, s := range steps {
		out = append(out, s.String())
	}
	return out
}

func TestPlan(t *testing.T) {
	all := HostState{Program: true, Unit: true, Config: true, Enabled: true, Active: true}
	unchanged := UnitState{Installed: true, Enabled: true, Active: true}
	for _, tt := range []struct {
		name   string
		change func(*HostState)
		want   []string
	}{
		{"everything is installed and started on a new host", func(s *HostState) {
			*s = HostState{MissingDirs: []string{"/h/etc/berth", "/h/etc/berth/pods"}, ExtraUnits: make([]UnitState, 1)}
		}, []string{
			"create directory /h/etc/berth (0755)", "create directory /h/etc/berth/pods (0700)",
			"copy /root/berth to /h/bin/berth",
			"write /h/etc/berth/config.yaml", "write /h/units/berth.service", "write /h/units/berth-drain.service",
			"systemctl daemon-reload", "systemctl enable berth.service",
			"systemctl start berth.service", "systemctl enable --now berth-drain.service",
		}},
		{"a changed extra unit is reloaded without a restart", func(s *HostState) {
			s.ExtraUnits[0].Installed = false
		}, []string{"write /h/units/berth-drain.service", "systemctl daemon-reload"}},
		{"a stopped extra unit is started", func(s *HostState) {
			s.ExtraUnits[0].Active = false
		}, []string{"systemctl enable --now berth-drain.service"}},
		{"a changed program is replaced and restarted", func(s *HostState) {
			s.Program = false
		}, []string{"copy /root/berth to /h/bin/berth", "systemctl restart berth.service"}},
		{"a changed unit is reloaded before the restart", func(s *HostState) {
			s.Unit = false
		}, []string{"write /h/units/berth.service", "systemctl daemon-reload", "systemctl restart berth.service"}},
		{"an extra unit that systemd has not loaded is reloaded", func(s *HostState) {
			s.ExtraUnits[0].NeedsReload = true
		}, []string{"systemctl daemon-reload"}},
		{"a replaced program that is not running yet is restarted", func(s *HostState) {
			s.ProgramReplaced = true
		}, []string{"systemctl restart berth.service"}},
		{"a unit that systemd has not loaded is reloaded before the restart", func(s *HostState) {
			s.NeedsReload = true
		}, []string{"systemctl daemon-reload", "systemctl restart berth.service"}},
		{"a stopped service is started", func(s *HostState) {
			s.Active = false
		}, []string{"systemctl start berth.service"}},
		{"a stopped service is started but not restarted", func(s *HostState) {
			s.Active, s.Program, s.ProgramReplaced = false, false, true
		}, []string{"copy /root/berth to /h/bin/berth", "systemctl start berth.service"}},
		{"a disabled service is enabled", func(s *HostState) {
			s.Enabled = false
		}, []string{"systemctl enable berth.service"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			state := all
			state.ExtraUnits = []UnitState{unchanged}
			tt.change(&state)
			if got := sentences(Plan(berth("/h"), state)); !slices.Equal(got, tt.want) {
				t.Errorf("steps %q,\nwant %q", got, tt.want)
			}
		})
	}
}

func TestCorrectInstallationIsUnchanged(t *testing.T) { // I1
	if got := Plan(berth("/h"), HostState{Program: true, Unit: true, Config: true, Enabled: true, Active: true,
		ExtraUnits: []UnitState{{Installed: true, Enabled: true, Active: true}}}); len(got) > 0 {
		t.Errorf("steps %q", sentences(got))
	}
	w := installed(t)
	state, err := Inspect(t.Context(), w)
	if err != nil {
		t.Fatal(err)
	}
	if got := Plan(w, state); len(got) > 0 {
		t.Errorf("second installation: got steps %q, want none", sentences(got))
	}
}

// installed installs the spec's files in temporary directories.
func installed(t *testing.T) Spec {
	t.Helper()
	dir := t.TempDir()
	w := berth(dir)
	w.Source, w.NoStart = filepath.Join(dir, "new"), true
	if err := os.WriteFile(w.Source, []byte("program"), 0o700); err != nil {
		t.Fatal(err)
	}
	state, err := Inspect(t.Context(), w)
	if err != nil {
		t.Fatal(err)
	}
	steps := slices.DeleteFunc(Plan(w, state), func(s Step) bool { return s.Kind == Systemctl })
	if err := (&Executor{Context: t.Context(), Out: new(bytes.Buffer)}).Run(steps); err != nil {
		t.Fatal(err)
	}
	return w
}

func TestExistingConfigurationIsUnchanged(t *testing.T) { // I2
	w := installed(t)
	if err := os.WriteFile(w.ConfigFile, []byte("mine"), 0o600); err != nil {
		t.Fatal(err)
	}
	state, err := Inspect(t.Context(), w)
	if err != nil || len(Plan(w, state)) > 0 {
		t.Errorf("steps %q, %v", sentences(Plan(w, state)), err)
	}
}

func TestProgramIsReplacedAtomically(t *testing.T) { // I3
	w := installed(t)
	old, err := os.Open(w.program())
	if err != nil {
		t.Fatal(err)
	}
	defer old.Close()
	if err := os.WriteFile(w.Source, []byte("newer program"), 0o700); err != nil {
		t.Fatal(err)
	}
	state, err := Inspect(t.Context(), w)
	if err != nil {
		t.Fatal(err)
	}
	d := &Executor{Context: t.Context(), Out: new(bytes.Buffer)}
	if err := d.Run([]Step{Plan(w, state)[0]}); err != nil {
		t.Fatal(err)
	}
	was := make([]byte, 32)
	n, _ := old.Read(was)
	now, err := os.ReadFile(w.program())
	if err != nil || string(was[:n]) != "program" || string(now) != "newer program" {
		t.Errorf("who has it open reads %q, who opens it now %q, %v", was[:n], now, err)
	}
	info, err := os.Stat(w.program())
	if err != nil || info.Mode().Perm() != 0o755 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	left, _ := filepath.Glob(filepath.Join(w.Layout.Programs, ".*"))
	if len(left) > 0 {
		t.Errorf("remaining files: %q", left)
	}
}

// TestProgramReplaced: the program may have been replaced without a restart of the service. A file with the
// same content counts as the same program.
func TestProgramReplaced(t *testing.T) {
	w := Spec{Name: "berth", Layout: Layout{Programs: t.TempDir()}}
	swapIn := func(from string) {
		t.Helper()
		text, err := os.ReadFile(from)
		if err == nil {
			err = replaceFile(w.program(), 0o755, bytes.NewReader(text))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	swapIn("/bin/sleep")
	cmd := exec.Command(w.program(), "infinity")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	process := fmt.Sprintf("/proc/%d", cmd.Process.Pid)
	for _, step := range []struct {
		name string
		do   func()
		want bool
	}{
		{"as it was started", func() {}, false},
		{"the same once more", func() { swapIn("/bin/sleep") }, false},
		{"another", func() { swapIn("/bin/true") }, true},
		{"the one that runs, again", func() { swapIn("/bin/sleep") }, false},
		{"of a process that has ended", func() {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
			swapIn("/bin/true")
		}, false},
	} {
		step.do()
		if got := w.programReplaced(process); got != step.want {
			t.Errorf("%s: got replaced %v", step.name, got)
		}
	}
}

func TestPlanRemovalRemovesProgramLast(t *testing.T) {
	there := map[string]bool{
		"/h/units/berth.service":       true,
		"/h/units/berth-drain.service": true,
		"/h/bin/berth":                 true,
		"/h/state":                     true,
		"/h/logs":                      true,
	}
	l := RemovalSpec{
		Spec: berth("/h"), Trees: []string{"/h/state", "/h/gone"}, EmptyDirs: []string{"/h/logs"},
		BeforeRemove: []Step{{Kind: Custom, Description: "end all pods"}},
	}
	got := sentences(
		PlanRemoval(l, HostState{Active: true, ExtraUnits: make([]UnitState, 1)}, func(p string) bool {
			return there[p]
		}),
	)
	want := []string{
		"systemctl disable --now berth-drain.service",
		"systemctl disable --now berth.service",
		"end all pods",
		"remove /h/state",
		"remove /h/logs if it is empty",
		"remove /h/units/berth-drain.service",
		"remove /h/units/berth.service",
		"systemctl daemon-reload",
		"remove /h/bin/berth",
	}
	if !slices.Equal(got, want) {
		t.Errorf("steps %q,\nwant %q", got, want)
	}
}

func TestRemoveTreeSkipsMounts(t *testing.T) { // I4
	dir := t.TempDir()
	tree := filepath.Join(dir, "tree")
	mounted := filepath.Join(tree, "a volume")
	if err := os.MkdirAll(mounted, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("tmpfs", mounted, "tmpfs", 0, "size=64k"); err != nil {
		t.Fatal(err)
	}
	unmount := func() { _ = unix.Unmount(mounted, unix.MNT_DETACH) }
	defer unmount()
	if err := os.WriteFile(filepath.Join(mounted, "data"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	d := &Executor{Context: t.Context(), Out: new(bytes.Buffer)}
	steps := []Step{{Kind: RemoveTree, Path: tree}}
	if err := d.Run(steps); err != nil || len(d.Skipped) != 1 || !strings.Contains(d.Skipped[0], mounted) ||
		!Exists(filepath.Join(mounted, "data")) {
		t.Errorf("kept %q, %v", d.Skipped, err)
	}
	unmount()
	if err := d.Run(steps); err != nil || Exists(tree) {
		t.Errorf("without the mount: %v, tree exists %v", err, Exists(tree))
	}
}

func TestRunStopsAtFailedStep(t *testing.T) {
	var out bytes.Buffer
	d := &Executor{Context: t.Context(), Out: &out}
	err := d.Run(
		[]Step{
			{Kind: RemoveFile, Path: "/nonexistent/file"},
			{Kind: CopyProgram, From: "/nonexistent/file", Path: "/to"},
			{Kind: Custom, Description: "never"},
		},
	)
	if !errors.Is(err, fs.ErrNotExist) || !strings.HasPrefix(err.Error(), "copy /nonexistent/file to /to: ") ||
		strings.Contains(out.String(), "never") {
		t.Errorf("got error %v, output %q", err, out.String())
	}
}
