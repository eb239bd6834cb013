package cri

import "testing"

func TestConfiguredDriver(t *testing.T) {
	t.Parallel()
	for _, row := range []struct{ name, text, want string }{
		{"the default runtime's option",
			`{"containerd":{"defaultRuntimeName":"runc","runtimes":{"runc":{"options":{"SystemdCgroup":true}}}}}`,
			"systemd"},
		{"disabled",
			`{"containerd":{"defaultRuntimeName":"runc","runtimes":{"runc":{"options":{"SystemdCgroup":false}}}}}`,
			"cgroupfs"},
		{"option of another runtime",
			`{"containerd":{"defaultRuntimeName":"runc","runtimes":{"runc":{},` +
				`"kata":{"options":{"SystemdCgroup":true}}}}}`,
			""},
		{"unknown structure", `{"containerd":[]}`, ""},
		{"nothing", ``, ""},
	} {
		if got := configuredDriver([]byte(row.text)); got != row.want {
			t.Errorf("%s: %s, want %s", row.name, got, row.want)
		}
	}
}
