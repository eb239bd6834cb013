package install

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestCheckNotPackaged(t *testing.T) {
	l := Layout{Units: t.TempDir()}
	if err := checkNotPackaged("berth", l); err != nil {
		t.Errorf("without a package: %v", err)
	}
	if err := os.WriteFile(filepath.Join(l.Units, "berth.service"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	err := checkNotPackaged("berth", l)
	if err == nil || !strings.Contains(err.Error(), "apt install ./berth_") ||
		!strings.Contains(err.Error(), "apt remove berth") {
		t.Errorf("the way out is not named: %v", err)
	}
	if err := checkNotPackaged("berth-control", l); err != nil {
		t.Errorf("the other program's package is in the way: %v", err)
	}
}
