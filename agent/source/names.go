package source

import (
	"maps"
	"path/filepath"
	"slices"
	"strings"
)

// ignoredName reports whether a name says of itself that its file lies there for something
// else: hidden, or left by an editor or a package.
func ignoredName(name string) bool {
	ext := filepath.Ext(name)
	return strings.HasPrefix(name, ".") || strings.HasPrefix(name, "#") || strings.HasPrefix(name, "~") || strings.HasSuffix(name, "~") ||
		ext == ".swp" || ext == ".bak" || strings.HasPrefix(ext, ".dpkg-")
}

// manifestName reports whether a file of that name is read at all.
func manifestName(name string) bool {
	switch filepath.Ext(name) {
	case ".yaml", ".yml", ".json", ".manifest":
		return !ignoredName(name)
	}
	return false
}

// reportIgnored tells once of each file that is not read because of its name: a kubelet reads
// all that are not hidden, so somebody may wait for its pod.
func (f *Directory) reportIgnored(names map[string]bool) {
	news := slices.DeleteFunc(slices.Sorted(maps.Keys(names)), func(name string) bool { return f.ignored[name] })
	f.ignored = names
	if n := len(news); n > 0 {
		const most = 10
		f.opt.Log.Warn("Files are not read because of their names: manifests end in .yaml, .yml, .json or .manifest",
			"path", f.opt.Path, "files", n, "names", strings.Join(news[:min(n, most)], ", "))
	}
}
