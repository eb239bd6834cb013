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

// hierarchy is a mounted cgroup hierarchy.
type hierarchy struct {
	mount       string // mount point of the root
	unified     bool   // cgroup v2
	controllers []string
	mkdir       func(string) error
}

// setting is the value of a cgroup file.
type setting struct {
	controller, file, value string
	unlimited               bool // means no limit; ignored if it cannot be set
}

func (h hierarchy) has(controller string) bool { return slices.Contains(h.controllers, controller) }

// create creates a cgroup and its parents, each with the controllers for limits. Usually only the
// last level is missing.
func (h hierarchy) create(dir string) error {
	if at := filepath.Join(h.mount, dir); h.level(filepath.Dir(at), at) == nil && h.hasControllers(at) {
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

// level creates one cgroup.
func (h hierarchy) level(above, at string) error {
	if err := h.mkdir(at); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	if h.has("cpuset") && !h.unified {
		return inheritCPUSet(above, at)
	}
	return nil
}

// apply writes the settings of this hierarchy's controllers.
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
			return fmt.Errorf(
				"set %s to %s: controller %s is not enabled for %s",
				s.file,
				s.value,
				s.controller,
				filepath.Dir(file),
			)
		}
		if err != nil {
			return fmt.Errorf("set %s: %w", s.file, err)
		}
	}
	return nil
}

// write sets a value unless it is already set: writing the same limit again may be rejected or
// cause needless reclaiming.
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

// parseMounts reads the cgroup hierarchies of a mountinfo file with their controllers. A named v1
// hierarchy has the controller name=…. Only the first mount of a hierarchy is used.
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

// isController reports whether an option of a v1 mount is a controller.
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

// unescapeMount decodes the octal escapes of mountinfo.
func unescapeMount(path string) string {
	return strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace(path)
}

// mkdir creates a cgroup that all users may read, whatever the umask is: a container in a user
// namespace mounts its own cgroup from there.
func mkdir(path string) error {
	if err := os.Mkdir(path, 0o755); err != nil {
		return err
	}
	return os.Chmod(path, 0o755)
}
