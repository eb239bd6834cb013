package cgroups

import (
	"maps"
	"path/filepath"
	"slices"
	"strconv"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// settingsV2 converts limits to the files of cgroup v2.
func settingsV2(r *specs.LinuxResources) []setting {
	out := []setting{{controller: "cpu", file: "cpu.weight", value: strconv.FormatUint(weightOf(*r.CPU.Shares), 10)}}
	if r.CPU.Quota != nil {
		value := strconv.FormatInt(*r.CPU.Quota, 10) + " " + strconv.FormatUint(*r.CPU.Period, 10)
		out = append(out, setting{controller: "cpu", file: "cpu.max", value: value})
	} else {
		out = append(out, setting{controller: "cpu", file: "cpu.max", value: "max", unlimited: true})
	}
	out = append(out, sizes(r, "max", "max")...)
	for _, file := range slices.Sorted(maps.Keys(r.Unified)) {
		out = append(out, setting{controller: "memory", file: file, value: r.Unified[file]})
	}
	return out
}

// sizes returns the settings that differ between v1 and v2 only in the last part of the file name
// and in the value for no limit.
func sizes(r *specs.LinuxResources, suffix, none string) []setting {
	memory := setting{controller: "memory", file: "memory." + suffix, value: none, unlimited: true}
	if r.Memory != nil {
		memory.value, memory.unlimited = strconv.FormatInt(*r.Memory.Limit, 10), false
	}
	pids := setting{controller: "pids", file: "pids.max", value: "max", unlimited: true} // the same on v1 and v2
	if r.Pids != nil {
		pids.value, pids.unlimited = strconv.FormatInt(*r.Pids.Limit, 10), false
	}
	out := []setting{memory, pids}
	for _, h := range r.HugepageLimits {
		limit := strconv.FormatUint(h.Limit, 10)
		out = append(out,
			setting{controller: "hugetlb", file: "hugetlb." + h.Pagesize + "." + suffix, value: limit},
			// Only newer kernels can limit reservations.
			setting{controller: "hugetlb", file: "hugetlb." + h.Pagesize + ".rsvd." + suffix, value: limit,
				unlimited: true})
	}
	return out
}

// delegated are the controllers that pods' cgroups get if the host has them.
var delegated = [...]string{"cpu", "cpuset", "io", "memory", "pids", "hugetlb"}

// hasControllers reports whether a cgroup has the delegated controllers.
func (h hierarchy) hasControllers(dir string) bool {
	if !h.unified || len(h.controllers) == 0 { // v1, or the unified hierarchy of a hybrid host
		return true
	}
	available := fields(filepath.Join(dir, "cgroup.controllers"))
	for _, name := range delegated {
		if h.has(name) && !slices.Contains(available, name) {
			return false
		}
	}
	return true
}

// enable enables the available controllers for the children of a cgroup. A failure is reported when
// a limit needs the controller.
func (h hierarchy) enable(dir string) {
	available := fields(filepath.Join(dir, "cgroup.controllers"))
	enabled := fields(filepath.Join(dir, "cgroup.subtree_control"))
	for _, name := range delegated {
		if slices.Contains(available, name) && !slices.Contains(enabled, name) {
			_ = write(filepath.Join(dir, "cgroup.subtree_control"), "+"+name)
		}
	}
}
