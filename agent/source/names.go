package source

import (
	"maps"
	"path/filepath"
	"slices"
	"strings"
)

// aside reports whether a name says of itself that its file lies there for something
// else: hidden, or left by an editor or a package.
func aside(name string) bool {
	ext := filepath.Ext(name)
	return strings.HasPrefix(name, ".") || strings.HasPrefix(name, "#") || strings.HasPrefix(name, "~") || strings.HasSuffix(name, "~") ||
		ext == ".swp" || ext == ".bak" || strings.HasPrefix(ext, ".dpkg-")
}

// candidate reports whether a file of that name is read at all.
func candidate(name string) bool {
	switch filepath.Ext(name) {
	case ".yaml", ".yml", ".json", ".manifest":
		return !aside(name)
	}
	return false
}

// pass tells once of each file that is not read because of its name: a kubelet reads
// all that are not hidden, so somebody may wait for its pod.
func (f *Folder) pass(names map[string]bool) {
	news := slices.DeleteFunc(slices.Sorted(maps.Keys(names)), func(name string) bool { return f.passed[name] })
	f.passed = names
	if n := len(news); n > 0 {
		const most = 10
		f.opt.Log.Warn("Files are not read because of their names: manifests end in .yaml, .yml, .json or .manifest",
			"path", f.opt.Path, "files", n, "names", strings.Join(news[:min(n, most)], ", "))
	}
}
