package main

import (
	"context"
	"os"
	"path/filepath"
	"strings"

	"berth/internal/nodeconfig"
	"berth/systemd/install"
	"berth/volumes"
)

// addRootDir adds what berth has in the root directory, which can also be that of a kubelet. While it
// has pod directories that berth did not create, only directories with the mark of berth are removed,
// and none that the kubelet has too. An unreadable directory counts as shared.
func addRootDir(l *install.RemovalSpec, c *nodeconfig.Config) (shared bool) {
	pods := filepath.Join(c.RootDir, "pods")
	own, foreign, err := volumes.ListPods(context.Background(), c.RootDir)
	shared = err != nil || len(foreign) > 0
	if !shared {
		for _, name := range []string{"pods", "device-plugins", "image_manager"} {
			l.Trees = append(l.Trees, filepath.Join(c.RootDir, name))
		}
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
