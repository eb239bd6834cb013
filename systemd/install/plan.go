package install

import (
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"

	"berth/systemd"
)

// Layout defines the directories of an installation.
type Layout struct {
	Programs, Units string // directories
}

// LocalLayout is the layout of installations without a package manager.
var LocalLayout = Layout{Programs: "/usr/local/bin", Units: "/etc/systemd/system"}

// DebianLayout is the layout of the Debian packages.
var DebianLayout = Layout{Programs: "/usr/bin", Units: "/usr/lib/systemd/system"}

// UnitFiles returns the paths where an installation has the unit of a program.
func UnitFiles(name string) []string {
	return []string{
		Spec{Name: name, Layout: LocalLayout}.unitFile(), Spec{Name: name, Layout: DebianLayout}.unitFile(),
	}
}

// Spec is the desired installation.
type Spec struct {
	Name       string // name of the program, and of its unit without .service
	Source     string // path of the program to install; empty: none
	Unit       string // content, with the program in /usr/bin
	Config     string // content of a new configuration file
	ConfigFile string // absolute
	Dirs       []Dir
	Layout     Layout
	ExtraUnits []Unit // must exist, be enabled and be active
	NoStart    bool   // only install files; do not enable or start units
}

// Unit is an additional unit.
type Unit struct {
	Name    string // with suffix
	Content string // with the program in /usr/bin
}

// Dir is a required directory.
type Dir struct {
	Path string
	Mode fs.FileMode
}

func (w Spec) program() string  { return filepath.Join(w.Layout.Programs, w.Name) }
func (w Spec) service() string  { return w.Name + ".service" }
func (w Spec) unitFile() string { return w.fileOf(w.service()) }
func (w Spec) unitText() string { return w.textOf(w.Unit) }

func (w Spec) fileOf(unit string) string    { return filepath.Join(w.Layout.Units, unit) }
func (w Spec) textOf(content string) string { return systemd.InDirectory(content, w.Layout.Programs) }

// HostState is the current state of an installation on the host.
type HostState struct {
	Program, Unit   bool     // installed and up to date
	Config          bool     // exists, with any content
	MissingDirs     []string // directories
	Enabled         bool
	Active          bool
	ProgramReplaced bool        // the running program differs from the installed one
	NeedsReload     bool        // systemd has not loaded the current unit file
	ExtraUnits      []UnitState // in the order of Spec.ExtraUnits
}

// UnitState is the state of a unit on the host.
type UnitState struct {
	Installed   bool // and up to date
	Enabled     bool
	Active      bool
	NeedsReload bool // as HostState.NeedsReload
}

// Kind is the kind of a step.
type Kind int

const (
	MakeDir     Kind = iota // Path, Mode
	CopyProgram             // From to Path
	WriteFile               // Content to Path, with Mode
	Systemctl               // Args
	RemoveFile              // Path
	RemoveTree              // Path with its content
	RemoveEmpty             // Path, a directory, if it is empty
	Custom                  // Run, provided by the caller
)

// Step is one step of an installation or removal.
type Step struct {
	Kind        Kind
	Path        string
	From        string
	Content     string
	Mode        fs.FileMode
	Args        []string
	Description string // of a Custom step
	Run         func(*Executor) error
}

func (s Step) String() string {
	switch s.Kind {
	case MakeDir:
		return fmt.Sprintf("create directory %s (%#o)", s.Path, s.Mode)
	case CopyProgram:
		return fmt.Sprintf("copy %s to %s", s.From, s.Path)
	case WriteFile:
		return "write " + s.Path
	case Systemctl:
		return "systemctl" + join(s.Args)
	case RemoveFile, RemoveTree:
		return "remove " + s.Path
	case RemoveEmpty:
		return fmt.Sprintf("remove %s if it is empty", s.Path)
	default:
		return s.Description
	}
}

func join(args []string) (out string) {
	for _, a := range args {
		out += " " + a
	}
	return out
}

// Plan returns the steps that establish the spec. It is empty if the installation is correct. A
// running program is restarted if the program or its unit changes, or was changed after the start.
func Plan(w Spec, state HostState) []Step {
	var steps []Step
	for _, d := range w.Dirs {
		if slices.Contains(state.MissingDirs, d.Path) {
			steps = append(steps, Step{Kind: MakeDir, Path: d.Path, Mode: d.Mode})
		}
	}
	if !state.Program {
		steps = append(steps, Step{Kind: CopyProgram, From: w.Source, Path: w.program(), Mode: 0o755})
	}
	if !state.Config {
		steps = append(steps, Step{Kind: WriteFile, Path: w.ConfigFile, Content: w.Config, Mode: 0o600})
	}
	reload := !state.Unit || state.NeedsReload
	if !state.Unit {
		steps = append(steps, Step{Kind: WriteFile, Path: w.unitFile(), Content: w.unitText(), Mode: 0o644})
	}
	for i, u := range w.ExtraUnits {
		reload = reload || state.ExtraUnits[i].NeedsReload
		if !state.ExtraUnits[i].Installed {
			reload = true
			steps = append(steps, Step{Kind: WriteFile, Path: w.fileOf(u.Name), Content: w.textOf(u.Content),
				Mode: 0o644})
		}
	}
	if reload {
		steps = append(steps, Step{Kind: Systemctl, Args: []string{"daemon-reload"}})
	}
	if w.NoStart {
		return steps
	}
	if !state.Enabled {
		steps = append(steps, Step{Kind: Systemctl, Args: []string{"enable", w.service()}})
	}
	switch {
	case !state.Active:
		steps = append(steps, Step{Kind: Systemctl, Args: []string{"start", w.service()}})
	case !state.Program || !state.Unit || state.ProgramReplaced || state.NeedsReload:
		steps = append(steps, Step{Kind: Systemctl, Args: []string{"restart", w.service()}})
	}
	for i, u := range w.ExtraUnits {
		if is := state.ExtraUnits[i]; !is.Enabled || !is.Active {
			steps = append(steps, Step{Kind: Systemctl, Args: []string{"enable", "--now", u.Name}})
		}
	}
	return steps
}

// RemovalSpec describes what to remove from the host.
type RemovalSpec struct {
	Spec
	Trees     []string // directories with their content
	Files     []string
	EmptyDirs []string // directories that are removed if empty
	// BeforeRemove runs when the service has stopped and all its files still exist, AfterRemove
	// immediately after it.
	BeforeRemove, AfterRemove []Step
}

// PlanRemoval returns the steps that remove the installation. exists reports whether a path exists.
func PlanRemoval(l RemovalSpec, state HostState, exists func(string) bool) []Step {
	var steps []Step
	for i, u := range l.ExtraUnits {
		if is := state.ExtraUnits[i]; exists(l.fileOf(u.Name)) || is.Active || is.Enabled {
			steps = append(steps, Step{Kind: Systemctl, Args: []string{"disable", "--now", u.Name}})
		}
	}
	if exists(l.unitFile()) || state.Active || state.Enabled {
		steps = append(steps, Step{Kind: Systemctl, Args: []string{"disable", "--now", l.service()}})
	}
	steps = append(append(steps, l.BeforeRemove...), l.AfterRemove...)
	remove := func(kind Kind, paths ...string) {
		for _, p := range paths {
			if exists(p) {
				steps = append(steps, Step{Kind: kind, Path: p})
			}
		}
	}
	remove(RemoveTree, l.Trees...)
	remove(RemoveFile, l.Files...)
	remove(RemoveEmpty, l.EmptyDirs...)
	before := len(steps)
	for _, u := range l.ExtraUnits {
		remove(RemoveFile, l.fileOf(u.Name))
	}
	remove(RemoveFile, l.unitFile())
	if len(steps) > before {
		steps = append(steps, Step{Kind: Systemctl, Args: []string{"daemon-reload"}})
	}
	remove(RemoveFile, l.program())
	return steps
}
