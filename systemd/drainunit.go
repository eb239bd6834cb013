package systemd

import _ "embed"

// DrainUnitName is the name that DrainUnit is to be installed under.
const DrainUnitName = "berth-drain.service"

// DrainUnit is the content of the unit that ends the pods before the host goes down.
//
//go:embed berth-drain.service
var DrainUnit string
