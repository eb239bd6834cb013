package main

import (
	"os/exec"
	"testing"
	"time"
)

var committed = time.Date(2026, 3, 4, 6, 7, 8, 0, time.FixedZone("", 3600))

func TestDebianVersion(t *testing.T) {
	for _, tt := range []struct{ describe, want string }{
		{"v1.2.3", "1.2.3"},
		{"1.2.3", "1.2.3"},
		{"v1.2.3-dirty", "1.2.3+dirty"},
		{"v1.2.3-rc.1", "1.2.3~rc.1"},
		{"v1.2.3-14-gabc1234", "1.2.3+14.gabc1234"},
		{"v1.2.3-rc.1-14-gabc1234-dirty", "1.2.3~rc.1+14.gabc1234+dirty"},
		{"3e610e8", "0~git20260304.050708.3e610e8"},
		{"1234567", "0~git20260304.050708.1234567"},
		{"3e610e8-dirty", "0~git20260304.050708.3e610e8+dirty"},
	} {
		if got, err := debianVersion(tt.describe, committed); err != nil || got != tt.want {
			t.Errorf("%s: got %q (%v), want %q", tt.describe, got, err, tt.want)
		}
	}
	for _, bad := range []string{"", "devel", "v1.2.3_4", "v1.2.3-a b", "../../v1"} {
		if got, err := debianVersion(bad, committed); err == nil {
			t.Errorf("%q was parsed as version %q", bad, got)
		}
	}
}

// TestDebianVersionsIncrease: a version that is newer for git must be newer for dpkg, which decides about upgrades.
func TestDebianVersionsIncrease(t *testing.T) {
	versions := []string{
		"abc1234",
		"v0.9.0-rc.1",
		"v0.9.0-rc.1-3-gfff0000",
		"v0.9.0-rc.2",
		"v0.9.0",
		"v0.9.0-2-gfff0000",
		"v0.9.0-10-g0000000",
		"v0.9.1",
		"v0.10.0",
	}
	var before string
	for i, describe := range versions {
		version, err := debianVersion(describe, committed)
		if err != nil {
			t.Fatal(err)
		}
		if i > 0 {
			if out, err := exec.CommandContext(t.Context(), "dpkg", "--compare-versions", before, "lt",
				version).CombinedOutput(); err != nil {
				t.Errorf("dpkg does not order %s before %s: %v %s", before, version, err, out)
			}
		}
		before = version
	}
	earlier, _ := debianVersion("fffffff", committed)
	later, _ := debianVersion("0000000", committed.Add(time.Second))
	if err := exec.CommandContext(t.Context(), "dpkg", "--compare-versions", earlier, "lt", later).Run(); err != nil {
		t.Errorf("dpkg does not order %s before %s, a second later", earlier, later)
	}
}
