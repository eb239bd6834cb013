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

// Local is for what no package manager has put there.
var Local = Layout{Programs: "/usr/local/bin", Units: "/etc/systemd/system"}

// Wanted is what shall be on the host.
type Wanted struct {
	Name       string // of the program, and of its unit without .service
	From       string // path of the program that is to be installed; empty: none is
	Unit       string // content, for a program in /usr/bin
	Config     string // content, for where there is none
	ConfigFile string // absolute
	Dirs       []Dir
	Layout     Layout
	Beside     []Unit // need only be there, enabled and started
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

func (w Wanted) program() string  { return filepath.Join(w.Layout.Programs, w.Name) }
func (w Wanted) service() string  { return w.Name + ".service" }
func (w Wanted) unitFile() string { return w.fileOf(w.service()) }
func (w Wanted) unitText() string { return w.textOf(w.Unit) }

func (w Wanted) fileOf(unit string) string    { return filepath.Join(w.Layout.Units, unit) }
func (w Wanted) textOf(content string) string { return systemd.InDirectory(content, w.Layout.Programs) }

// Seen is what a host has of it.
type Seen struct {
	Program, Unit bool     // there, and as it should be
	Config        bool     // there, whatever is in it
	Missing       []string // directories
	Enabled       bool
	Active        bool
	Other         bool       // what runs is another program than the one that is there
	Unread        bool       // systemd has not read the unit as it is there
	Beside        []SeenUnit // as Wanted.Beside
}

// SeenUnit is what a host has of a unit.
type SeenUnit struct {
	There   bool // and as it should be
	Enabled bool
	Active  bool
	Unread  bool // as Seen.Unread
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
	Own                     // Run, something that the caller knows how to do
)

// Step is one thing to be done.
type Step struct {
	Kind    Kind
	Path    string
	From    string
	Content string
	Mode    fs.FileMode
	Args    []string
	Says    string // of Own
	Run     func(*Doing) error
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
		return s.Says
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
func Plan(w Wanted, seen Seen) []Step {
	var steps []Step
	for _, d := range w.Dirs {
		if slices.Contains(seen.Missing, d.Path) {
			steps = append(steps, Step{Kind: MakeDir, Path: d.Path, Mode: d.Mode})
		}
	}
	if !seen.Program {
		steps = append(steps, Step{Kind: CopyProgram, From: w.From, Path: w.program(), Mode: 0o755})
	}
	if !seen.Config {
		steps = append(steps, Step{Kind: WriteFile, Path: w.ConfigFile, Content: w.Config, Mode: 0o600})
	}
	reload := !seen.Unit || seen.Unread
	if !seen.Unit {
		steps = append(steps, Step{Kind: WriteFile, Path: w.unitFile(), Content: w.unitText(), Mode: 0o644})
	}
	for i, u := range w.Beside {
		reload = reload || seen.Beside[i].Unread
		if !seen.Beside[i].There {
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
	case !seen.Program || !seen.Unit || seen.Other || seen.Unread:
		steps = append(steps, Step{Kind: Systemctl, Args: []string{"restart", w.service()}})
	}
	for i, u := range w.Beside {
		if is := seen.Beside[i]; !is.Enabled || !is.Active {
			steps = append(steps, Step{Kind: Systemctl, Args: []string{"enable", "--now", u.Name}})
		}
	}
	return steps
}

// Leaving is what shall go from the host.
type Leaving struct {
	Wanted
	Trees []string // directories with all in them
	Files []string
	Empty []string // directories that go if nothing is left in them
	// Before is done when the service has ended and all its files are there, Then right
	// after it.
	Before, Then []Step
}

// Removal says what is to be done so that nothing of it is on the host. there
// reports whether a path is.
func Removal(l Leaving, seen Seen, there func(string) bool) []Step {
	var steps []Step
	for i, u := range l.Beside {
		if is := seen.Beside[i]; there(l.fileOf(u.Name)) || is.Active || is.Enabled {
			steps = append(steps, Step{Kind: Systemctl, Args: []string{"disable", "--now", u.Name}})
		}
	}
	if there(l.unitFile()) || seen.Active || seen.Enabled {
		steps = append(steps, Step{Kind: Systemctl, Args: []string{"disable", "--now", l.service()}})
	}
	steps = append(append(steps, l.Before...), l.Then...)
	remove := func(kind Kind, paths ...string) {
		for _, p := range paths {
			if there(p) {
				steps = append(steps, Step{Kind: kind, Path: p})
			}
		}
	}
	remove(RemoveTree, l.Trees...)
	remove(RemoveFile, l.Files...)
	remove(RemoveEmpty, l.Empty...)
	before := len(steps)
	for _, u := range l.Beside {
		remove(RemoveFile, l.fileOf(u.Name))
	}
	remove(RemoveFile, l.unitFile())
	if len(steps) > before {
		steps = append(steps, Step{Kind: Systemctl, Args: []string{"daemon-reload"}})
	}
	remove(RemoveFile, l.program())
	return steps
}
