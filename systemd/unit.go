package systemd

import (
	_ "embed"
	"strings"
)

// Names that the units are to be installed under.
const (
	UnitName        = "berth.service"
	ControlUnitName = "berth-control.service"
)

// Unit is the content of the agent's unit file, for a program in /usr/bin.
//
//go:embed berth.service
var Unit string

// ControlUnit is the content of the control server's unit file, for a program
// in /usr/bin.
//
//go:embed berth-control.service
var ControlUnit string

// InDirectory returns a unit for a program that lies in another directory than
// /usr/bin.
func InDirectory(unit, dir string) string {
	return strings.ReplaceAll(unit, "=/usr/bin/", "="+strings.TrimSuffix(dir, "/")+"/")
}
