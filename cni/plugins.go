package cni

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/containernetworking/cni/libcni"
)

const versionTimeout = 5 * time.Second // for a plugin's VERSION command

// findPlugin finds a plugin's program. Its error is shown to users.
func findPlugin(plugin string, dirs []string) (string, os.FileInfo, error) {
	for _, dir := range dirs {
		file := filepath.Join(dir, plugin)
		st, err := os.Stat(file)
		if err == nil && st.Mode().IsRegular() && st.Mode()&0o111 != 0 {
			return file, st, nil
		}
	}
	return "", nil, fmt.Errorf("plugin %q not found in %s", plugin, strings.Join(dirs, ", "))
}

// cachedVersions are the versions that a plugin has reported, with the identity of its file.
type cachedVersions struct {
	modified time.Time
	size     int64
	versions []string
}

// versions returns the CNI specification versions that a plugin supports. It runs the plugin again
// only if its file has changed.
func (n *Network) versions(ctx context.Context, plugin, file string, st os.FileInfo) ([]string, error) {
	n.mu.Lock()
	known, ok := n.versionCache[file]
	n.mu.Unlock()
	if ok && known.modified.Equal(st.ModTime()) && known.size == st.Size() {
		return known.versions, nil
	}
	ctx, cancel := context.WithTimeout(ctx, versionTimeout)
	defer cancel()
	answer, err := libcni.NewCNIConfig([]string{filepath.Dir(file)}, nil).GetVersionInfo(ctx, plugin)
	if err != nil {
		return nil, fmt.Errorf("plugin %q at %s: query version: %w", plugin, file, err)
	}
	known = cachedVersions{modified: st.ModTime(), size: st.Size(), versions: slices.Clone(answer.SupportedVersions())}
	n.mu.Lock()
	n.versionCache[file] = known
	n.mu.Unlock()
	return known.versions, nil
}

func (n *Network) checkPlugin(ctx context.Context, conf netConf, plugin string) Item {
	item := Item{Name: "plugin " + plugin}
	file, st, err := findPlugin(plugin, n.opts.BinDirs)
	if err != nil {
		item.Detail = err.Error()
		item.Remedy = "install the CNI plugins, or name their directory with cniBinDirs"
		return item
	}
	versions, err := n.versions(ctx, plugin, file, st)
	switch {
	case err != nil:
		item.Detail, item.Remedy = err.Error(), "replace "+file+": it is broken or not a CNI plugin"
	case conf.version != "" && !slices.Contains(versions, conf.version):
		item.Detail = fmt.Sprintf(
			"%s supports CNI %s, the configuration requires %s",
			file,
			strings.Join(versions, ", "),
			conf.version,
		)
		item.Remedy = "upgrade the plugin, or lower cniVersion in " + conf.file
	default:
		item.OK, item.Detail = true, fmt.Sprintf("%s, CNI %s", file, strings.Join(versions, ", "))
	}
	return item
}
