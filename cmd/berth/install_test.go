package main

import (
	"slices"
	"testing"

	"berth/nodeconfig"
)

// A directory that the configuration names may be anybody's: /run, /etc/ssl.
func TestUninstallTakesOnlyItsOwnFilesFromDirectoriesThatSomebodyChose(t *testing.T) {
	usual := &nodeconfig.Config{
		RootDir: nodeconfig.DefaultRootDir, StateDir: nodeconfig.DefaultStateDir, Socket: nodeconfig.DefaultSocket, CertDir: nodeconfig.DefaultCertDir,
	}
	l := uninstalling{}.leaving(wanted(""), usual)
	for _, dir := range []string{"/var/lib/berth", "/run/berth", "/var/lib/kubelet/pki", "/var/lib/kubelet/pods", "/etc/berth"} {
		if !slices.Contains(l.Trees, dir) {
			t.Errorf("%s stays: %q go", dir, l.Trees)
		}
	}
	if slices.Contains(l.Trees, "/var/lib/kubelet") {
		t.Error("what others keep in /var/lib/kubelet goes")
	}
	chosen := &nodeconfig.Config{RootDir: "/data", StateDir: "/srv", Socket: "/run/b.sock", CertDir: "/etc/ssl"}
	l = uninstalling{keepConfig: true}.leaving(wanted(""), chosen)
	if want := []string{"/data/pods", "/data/device-plugins", "/data/image_manager"}; !slices.Equal(l.Trees, want) {
		t.Errorf("%q go with all in them, want %q", l.Trees, want)
	}
	if want := []string{"/srv/berth.db", "/run/b.sock"}; !slices.Equal(l.Files, want) {
		t.Errorf("%q go, want %q", l.Files, want)
	}
}
