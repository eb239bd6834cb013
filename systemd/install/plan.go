package install

import (
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"

	"berth/systemd"
)

// Layout is where an installation has its files.
type Layout struct {
	Programs, Units string // directories
}

// LocalLayout is for what no package manager has put there.
var LocalLayout = Layout{Programs: "/usr/local/bin", Units: "/etc/systemd/system"}

// Spec is what shall be on the host.
type Spec struct {
	Name       string // of the program, and of its unit without .service
	Source     string // path of the program that is to be installed; empty: none is
	Unit       string // content, for a program in /usr/bin
	Config     string // content, for where there is none
	ConfigFile string // absolute
	Dirs       []Dir
	Layout     Layout
	ExtraUnits []Unit // need only be there, enabled and started
	NoStart    bool   // only put there; neither enabled nor started
}

// Unit is a unit beside the program's own.
type Unit struct {
	Name    string // with its suffix
	Content string // for a program in /usr/bin
}

// Dir is a directory that shall be there.
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

// HostState is what a host has of it.
type HostState struct {
	Program, Unit   bool     // there, and as it should be
	Config          bool     // there, whatever is in it
	MissingDirs     []string // directories
	Enabled         bool
	Active          bool
	ProgramReplaced bool        // what runs is another program than the one that is there
	NeedsReload     bool        // systemd has not read the unit as it is there
	ExtraUnits      []UnitState // as Wanted.Beside
}

// UnitState is what a host has of a unit.
type UnitState struct {
	Installed   bool // and as it should be
	Enabled     bool
	Active      bool
	NeedsReload bool // as Seen.Unread
}

// Kind is what a step does.
type Kind int

const (
	MakeDir     Kind = iota // Path, Mode
	CopyProgram             // From to Path
	WriteFile               // Content to Path, with Mode
	Systemctl               // Args
	RemoveFile              // Path
	RemoveTree              // Path and all in it
	RemoveEmpty             // Path, a directory, if there is nothing in it
	Custom                  // Run, something that the caller knows how to do
)

// Step is one thing to be done.
type Step struct {
	Kind        Kind
	Path        string
	From        string
	Content     string
	Mode        fs.FileMode
	Args        []string
	Description string // of Own
	Run         func(*Executor) error
}

func (s Step) String() string {
	switch s.Kind {
	case MakeDir:
		return fmt.Sprintf("make the directory %s (%#o)", s.Path, s.Mode)
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

// Plan says what is to be done so that the host has what is wanted. It is empty
// if nothing is. A program that runs is restarted if it or its unit changes, or has
// changed since it was started.
func Plan(w Spec, seen HostState) []Step {
	var steps []Step
	for _, d := range w.Dirs {
		if slices.Contains(seen.MissingDirs, d.Path) {
			steps = append(steps, Step{Kind: MakeDir, Path: d.Path, Mode: d.Mode})
		}
	}
	if !seen.Program {
		steps = append(steps, Step{Kind: CopyProgram, From: w.Source, Path: w.program(), Mode: 0o755})
	}
	if !seen.Config {
		steps = append(steps, Step{Kind: WriteFile, Path: w.ConfigFile, Content: w.Config, Mode: 0o600})
	}
	reload := !seen.Unit || seen.NeedsReload
	if !seen.Unit {
		steps = append(steps, Step{Kind: WriteFile, Path: w.unitFile(), Content: w.unitText(), Mode: 0o644})
	}
	for i, u := range w.ExtraUnits {
		reload = reload || seen.ExtraUnits[i].NeedsReload
		if !seen.ExtraUnits[i].Installed {
			reload = true
			steps = append(steps, Step{Kind: WriteFile, Path: w.fileOf(u.Name), Content: w.textOf(u.Content), Mode: 0o644})
		}
	}
	if reload {
		steps = append(steps, Step{Kind: Systemctl, Args: []string{"daemon-reload"}})
	}
	if w.NoStart {
		return steps
	}
	if !seen.Enabled {
		steps = append(steps, Step{Kind: Systemctl, Args: []string{"enable", w.service()}})
	}
	switch {
	case !seen.Active:
		steps = append(steps, Step{Kind: Systemctl, Args: []string{"start", w.service()}})
	case !seen.Program || !seen.Unit || seen.ProgramReplaced || seen.NeedsReload:
		steps = append(steps, Step{Kind: Systemctl, Args: []string{"restart", w.service()}})
	}
	for i, u := range w.ExtraUnits {
		if is := seen.ExtraUnits[i]; !is.Enabled || !is.Active {
			steps = append(steps, Step{Kind: Systemctl, Args: []string{"enable", "--now", u.Name}})
		}
	}
	return steps
}

// RemovalSpec is what shall go from the host.
type RemovalSpec struct {
	Spec
	Trees     []string // directories with all in them
	Files     []string
	EmptyDirs []string // directories that go if nothing is left in them
	// BeforeRemove is done when the service has ended and all its files are there, Then right
	// after it.
	BeforeRemove, AfterRemove []Step
}

// PlanRemoval says what is to be done so that nothing of it is on the host. there
// reports whether a path is.
func PlanRemoval(l RemovalSpec, seen HostState, there func(string) bool) []Step {
	var steps []Step
	for i, u := range l.ExtraUnits {
		if is := seen.ExtraUnits[i]; there(l.fileOf(u.Name)) || is.Active || is.Enabled {
			steps = append(steps, Step{Kind: Systemctl, Args: []string{"disable", "--now", u.Name}})
		}
	}
	if there(l.unitFile()) || seen.Active || seen.Enabled {
		steps = append(steps, Step{Kind: Systemctl, Args: []string{"disable", "--now", l.service()}})
	}
	steps = append(append(steps, l.BeforeRemove...), l.AfterRemove...)
	remove := func(kind Kind, paths ...string) {
		for _, p := range paths {
			if there(p) {
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
