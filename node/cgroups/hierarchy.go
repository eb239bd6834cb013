package cgroups

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// hierarchy is one mounted tree of cgroups.
type hierarchy struct {
	mount       string // where its root is
	unified     bool   // cgroup v2
	controllers []string
	mkdir       func(string) error
}

// setting is one value in one file of a cgroup.
type setting struct {
	controller, file, value string
	unlimited               bool // nothing is lost where it cannot be set
}

func (h hierarchy) has(controller string) bool { return slices.Contains(h.controllers, controller) }

// create makes a cgroup and those above it, level by level, each able to hold
// limits. Most often those above are there and only the last is missing.
func (h hierarchy) create(dir string) error {
	if at := filepath.Join(h.mount, dir); h.level(filepath.Dir(at), at) == nil && h.whole(at) {
		return nil
	}
	at := h.mount
	for name := range strings.SplitSeq(dir, "/") {
		if h.unified {
			h.enable(at)
		}
		above := at
		at = filepath.Join(at, name)
		if err := h.level(above, at); err != nil {
			return err
		}
	}
	return nil
}

// level makes one cgroup.
func (h hierarchy) level(above, at string) error {
	if err := h.mkdir(at); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	if h.has("cpuset") && !h.unified {
		return inheritCPUSet(above, at)
	}
	return nil
}

// apply writes those settings that this hierarchy is for.
func (h hierarchy) apply(dir string, settings []setting) error {
	for _, s := range settings {
		if !h.has(s.controller) {
			continue
		}
		file := filepath.Join(h.mount, dir, s.file)
		err := write(file, s.value)
		if errors.Is(err, os.ErrNotExist) && exists(filepath.Dir(file)) {
			if s.unlimited {
				continue
			}
			return fmt.Errorf("set %s to %s: controller %s is not enabled for %s", s.file, s.value, s.controller, filepath.Dir(file))
		}
		if err != nil {
			return fmt.Errorf("set %s: %w", s.file, err)
		}
	}
	return nil
}

// write sets a value unless it is there already: a limit that is written again
// can be refused or make the kernel reclaim for nothing.
func write(file, value string) error {
	if have, err := os.ReadFile(file); err == nil && strings.TrimSpace(string(have)) == value {
		return nil
	}
	return put(file, value)
}

// put sets a value.
func put(file, value string) error {
	f, err := os.OpenFile(file, os.O_WRONLY|os.O_TRUNC, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(value)
	return errors.Join(err, f.Close())
}

func exists(path string) bool {
	var st unix.Stat_t
	return unix.Lstat(path, &st) == nil
}

func fields(file string) []string {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil
	}
	return strings.Fields(string(text))
}

// parseMounts reads the cgroup hierarchies from a mountinfo file, v1's with
// their controllers, a named one as name=…. Of a hierarchy that is mounted
// more than once the first mount counts.
func parseMounts(mountinfo string) []hierarchy {
	var out []hierarchy
	seen := map[string]bool{}
	for line := range strings.Lines(mountinfo) {
		own, rest, found := strings.Cut(strings.TrimSpace(line), " - ")
		left, right := strings.Fields(own), strings.Fields(rest)
		if !found || len(left) < 6 || len(right) < 3 {
			continue
		}
		h := hierarchy{mount: unescapeMount(left[4]), mkdir: mkdir}
		switch right[0] {
		case "cgroup2":
			h.unified = true
		case "cgroup":
			for option := range strings.SplitSeq(right[2], ",") {
				if isController(option) {
					h.controllers = append(h.controllers, option)
				}
			}
			if len(h.controllers) == 0 {
				continue
			}
		default:
			continue
		}
		if key := strings.Join(h.controllers, ","); !seen[key] {
			seen[key] = true
			out = append(out, h)
		}
	}
	return out
}

// isController tells controllers from the other options of a v1 mount.
func isController(option string) bool {
	if strings.HasPrefix(option, "name=") {
		return true
	}
	switch option {
	case "cpu", "cpuacct", "cpuset", "memory", "devices", "freezer", "blkio", "pids",
		"hugetlb", "net_cls", "net_prio", "perf_event", "rdma", "misc":
		return true
	}
	return false
}

// unescapeMount undoes the octal escapes of mountinfo.
func unescapeMount(path string) string {
	return strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace(path)
}

// mkdir makes a cgroup that everybody may look into, whatever the umask: a
// container whose root is nobody on the host mounts its own from there.
func mkdir(path string) error {
	if err := os.Mkdir(path, 0o755); err != nil {
		return err
	}
	return os.Chmod(path, 0o755)
}
