package control

import (
	"os"
	"testing"
)

func TestMain(m *testing.M) {
	code := m.Run()
	if failed := endShared(); code == 0 {
		code = failed
	}
	os.Exit(code)
}
