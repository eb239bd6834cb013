package node

import (
	"os"
	"path/filepath"
	"testing"
)

func TestAppArmorEnabled(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "enabled")
	if appArmor(file) {
		t.Error("AppArmorEnabled is true for a missing file")
	}
	for text, want := range map[string]bool{"Y\n": true, "N\n": false, "": false} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if appArmor(file) != want {
			t.Errorf("%q", text)
		}
	}
}

func TestRootShared(t *testing.T) {
	t.Parallel()
	const private, shared = "22 1 8:1 / / rw,relatime - ext4 /dev/root rw\n",
		"22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/root rw\n"
	const slave, other = "22 1 8:1 / / rw master:1 - ext4 shared:1 rw\n",
		"23 22 8:2 / /srv rw shared:2 - ext4 /dev/b rw\n"
	for table, want := range map[string]bool{
		"": false, private: false, shared: true, slave: false, private + other: false, private + shared: true,
		shared + other + private: false, "x\n": false,
	} {
		if rootShared(table) != want {
			t.Errorf("%q", table)
		}
	}
	if _, err := RootMountShared(); err != nil {
		t.Error(err)
	}
}
