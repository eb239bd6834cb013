package control

import (
	"os"
	"testing"

	"berth/test/hosts"
)

func TestMain(m *testing.M) {
	hosts.SideBySide(3)
	code := m.Run()
	if failed := endShared(); code == 0 {
		code = failed
	}
	os.Exit(code)
}
