package cli

import (
	"encoding/json"
	"strings"
	"testing"
)

func TestDebugProfiles(t *testing.T) {
	t.Parallel()
	for profile, want := range map[string]string{
		"general":  `{"capabilities":{"add":["SYS_PTRACE"]}}`,
		"baseline": `null`,
		"restricted": `{"capabilities":{"drop":["ALL"]},"runAsNonRoot":true,` +
			`"allowPrivilegeEscalation":false,"seccompProfile":{"type":"RuntimeDefault"}}`,
		"netadmin": `{"capabilities":{"add":["NET_ADMIN","NET_RAW"]}}`,
		"sysadmin": `{"privileged":true}`,
	} {
		c, err := debugOptions{image: "i", profile: profile}.ephemeral(nil)
		if err != nil {
			t.Errorf("%s: %v", profile, err)
		}
		if got, err := json.Marshal(c.SecurityContext); err != nil || string(got) != want {
			t.Errorf("%s: %s %v, want %s", profile, got, err, want)
		}
	}
	if _, err := (debugOptions{profile: "root"}).ephemeral(nil); err == nil ||
		!strings.Contains(err.Error(), "--profile") {
		t.Errorf("an unknown profile: %v", err)
	}
}
