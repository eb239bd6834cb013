package systemd

import _ "embed"

// UnitName is the name that Unit is to be installed under.
const UnitName = "berth.service"

// Unit is the content of the agent's unit file.
//
//go:embed berth.service
var Unit string
