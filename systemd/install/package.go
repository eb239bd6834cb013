package install

import (
	"fmt"
	"path/filepath"
)

// DebianLayout is where the packages of Debian have their files.
var DebianLayout = Layout{Programs: "/usr/bin", Units: "/usr/lib/systemd/system"}

// CheckNotPackaged is an error on a host that has the program by a package: what is the
// package manager's is changed by it alone, and a second installation would shadow
// the first.
func CheckNotPackaged(name string) error {
	return byPackage(name, DebianLayout)
}

func byPackage(name string, l Layout) error {
	unit := filepath.Join(l.Units, name+".service")
	if !Exists(unit) {
		return nil
	}
	return fmt.Errorf("a package has installed %[1]s here (%[2]s): upgrade it by apt install ./%[1]s_VERSION_ARCH.deb, take it away by apt remove %[1]s (and its state by apt purge %[1]s)", name, unit)
}
