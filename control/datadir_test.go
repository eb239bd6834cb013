package control

import (
	"errors"
	"syscall"
	"testing"
)

// TestDataDirIsUnlockedAtOnce locks a data directory again while a copy of the file of the first lock is open, as in a
// child process before it executes its program.
func TestDataDirIsUnlockedAtOnce(t *testing.T) {
	t.Parallel()
	c := Config{DataDir: t.TempDir()}
	first, err := lockDataDir(&c)
	if err != nil {
		t.Fatal(err)
	}
	inherited, err := syscall.Dup(int(first.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	defer syscall.Close(inherited)
	if _, err := lockDataDir(&c); !errors.Is(err, errDataDirInUse) {
		t.Fatalf("second lock: got %v, want %v", err, errDataDirInUse)
	}
	unlockDataDir(first)
	second, err := lockDataDir(&c)
	if err != nil {
		t.Fatal(err)
	}
	unlockDataDir(second)
}
