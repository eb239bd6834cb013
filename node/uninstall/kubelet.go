package uninstall

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"berth/internal/nodeconfig"
	"berth/node/handover"
	"berth/systemd/install"
	"berth/volumes"
)

// unitDirs are the directories of unit files, without those that systemd generates.
var unitDirs = []string{
	"/etc/systemd/system", "/run/systemd/system", "/usr/local/lib/systemd/system", "/usr/lib/systemd/system",
	"/lib/systemd/system",
}

// KubeletFiles returns the files that show that this host has a kubelet, even if it does not run and
// has no pods now. Below its root directory, the kubelet has files that berth never creates. host is
// the root of the file system.
func KubeletFiles(host, rootDir string) (found []string) {
	candidates := []string{"/etc/kubernetes/kubelet.conf", "/etc/kubernetes/bootstrap-kubelet.conf"}
	for _, dir := range unitDirs {
		candidates = append(candidates, filepath.Join(dir, handover.KubeletService))
	}
	for _, dir := range []string{nodeconfig.DefaultRootDir, rootDir} {
		for _, name := range []string{
			"config.yaml", "kubeadm-flags.env", "kubeconfig", "cpu_manager_state", "memory_manager_state",
			"allocated_pods_state", "actuated_pods_state", "dra_manager_state",
		} {
			candidates = append(candidates, filepath.Join(dir, name))
		}
	}
	for _, path := range candidates {
		if install.Exists(filepath.Join(host, path)) && !slices.Contains(found, path) {
			found = append(found, path)
		}
	}
	return found
}

// addRootDir adds what berth has in the root directory, which can also be that of a kubelet. While the
// host has a kubelet, or pod directories that berth did not create, only directories with the mark of
// berth are removed, and none that the kubelet has too. An unreadable directory counts as shared.
func addRootDir(l *install.RemovalSpec, c *nodeconfig.Config, kubelet bool) (shared bool) {
	pods := filepath.Join(c.RootDir, "pods")
	own, foreign, err := volumes.ListPods(context.Background(), c.RootDir)
	shared = kubelet || err != nil || len(foreign) > 0
	if !shared {
		for _, name := range []string{"pods", "device-plugins", "plugins_registry", "pod-resources",
			"image_manager"} {
			l.Trees = append(l.Trees, filepath.Join(c.RootDir, name))
		}
		// A volume that a CSI driver did not unmount is kept, and so are the files of drivers.
		csi := filepath.Join(c.RootDir, "plugins", "kubernetes.io", "csi")
		entries, _ := os.ReadDir(csi) // the removal reports the error
		for _, e := range entries {
			if e.Name() == "volumeDevices" { // of raw block volumes
				for _, sub := range []string{"staging", "publish"} {
					l.EmptyDirs = append(l.EmptyDirs, filepath.Join(csi, e.Name(), sub))
				}
			}
			l.EmptyDirs = append(l.EmptyDirs, filepath.Join(csi, e.Name()))
		}
		l.EmptyDirs = append(l.EmptyDirs, csi, filepath.Dir(csi), filepath.Join(c.RootDir, "plugins"),
			filepath.Join(c.RootDir, "local-volumes")) // volumes of the class local are data of users
		return false
	}
	entries, _ := os.ReadDir(pods) // the removal reports the error
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), ".") { // only berth creates such names
			l.Trees = append(l.Trees, filepath.Join(pods, e.Name()))
		}
	}
	for _, uid := range own {
		if dir := filepath.Join(pods, string(uid)); install.Exists(dir) {
			l.Trees = append(l.Trees, dir)
		}
	}
	return true
}
