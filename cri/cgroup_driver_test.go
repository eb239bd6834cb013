package cri

import "testing"

func TestConfiguredDriver(t *testing.T) {
	t.Parallel()
	for _, row := range []struct{ what, text, want string }{
		{"the default runtime's option", `{"containerd":{"defaultRuntimeName":"runc","runtimes":{"runc":{"options":{"SystemdCgroup":true}}}}}`, "systemd"},
		{"switched off", `{"containerd":{"defaultRuntimeName":"runc","runtimes":{"runc":{"options":{"SystemdCgroup":false}}}}}`, "cgroupfs"},
		{"of another runtime only", `{"containerd":{"defaultRuntimeName":"runc","runtimes":{"runc":{},"kata":{"options":{"SystemdCgroup":true}}}}}`, ""},
		{"another shape", `{"containerd":[]}`, ""},
		{"nothing", ``, ""},
	} {
		if got := configuredDriver([]byte(row.text)); got != row.want {
			t.Errorf("%s: %s, want %s", row.what, got, row.want)
		}
	}
}
