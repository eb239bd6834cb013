package systemd

import (
	_ "embed"
	"strings"
)

// File names of the units.
const (
	UnitName        = "berth.service"
	ControlUnitName = "berth-control.service"
	DrainUnitName   = "berth-drain.service"
)

// Unit is the agent's unit, with the program in /usr/bin.
//
//go:embed berth.service
var Unit string

// ControlUnit is the control server's unit, with the program in /usr/bin.
//
//go:embed berth-control.service
var ControlUnit string

// DrainUnit is the unit that terminates the pods before a shutdown of the host.
//
//go:embed berth-drain.service
var DrainUnit string

// InDirectory returns a unit with the program in another directory than /usr/bin.
func InDirectory(unit, dir string) string {
	return strings.ReplaceAll(unit, "=/usr/bin/", "="+strings.TrimSuffix(dir, "/")+"/")
}
