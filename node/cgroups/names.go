package cgroups

import (
	"fmt"
	"path"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

const (
	podsName   = "kubepods"
	burstable  = "burstable"
	besteffort = "besteffort"
	podPrefix  = "pod"
)

// tiers returns the QoS tiers below kubepods. Guaranteed pods are in kubepods itself.
func tiers() []string { return []string{"", burstable, besteffort} }

func tierOf(class corev1.PodQOSClass) string {
	switch class {
	case corev1.PodQOSBurstable:
		return burstable
	case corev1.PodQOSBestEffort:
		return besteffort
	}
	return ""
}

// layout maps pods to cgroup names. A cgroup is a list of cgroupfs names from the root: kubepods,
// burstable, pod<uid>.
type layout struct {
	root    []string
	systemd bool
}

// newLayout parses a cgroup root such as /berth, or with systemd also /berth.slice.
func newLayout(root string, systemd bool) (layout, error) {
	l := layout{systemd: systemd}
	names := strings.FieldsFunc(root, func(r rune) bool { return r == '/' })
	if systemd && len(names) > 0 && strings.HasSuffix(names[len(names)-1], ".slice") {
		// The name of a slice contains the names of its parents.
		names = strings.Split(strings.TrimSuffix(names[len(names)-1], ".slice"), "-")
	}
	for _, name := range names {
		if name == "." || name == ".." || !plainName(name) {
			return l, fmt.Errorf("cgroup root %q: %q is not a valid cgroup name", root, name)
		}
	}
	l.root = names
	return l, nil
}

// plainName reports whether a name needs no escaping in paths and units.
func plainName(name string) bool {
	for _, r := range name {
		switch {
		case r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', r >= '0' && r <= '9', strings.ContainsRune("-_.", r):
		default:
			return false
		}
	}
	return name != "" && len(name) <= 128
}

func (l layout) tier(tier string) []string {
	names := append(slices.Clip(l.root), podsName)
	if tier != "" {
		names = append(names, tier)
	}
	return names
}

func (l layout) pod(tier string, uid types.UID) []string {
	return append(l.tier(tier), podPrefix+string(uid))
}

// dir returns a cgroup's directory below the mount point of a hierarchy.
func (l layout) dir(names []string) string {
	if !l.systemd {
		return path.Join(names...)
	}
	dirs := make([]string, len(names))
	for i := range names {
		dirs[i] = slice(names[:i+1])
	}
	return path.Join(dirs...)
}

// slice returns the unit of a cgroup. Dashes separate levels, so dashes within names become
// underscores.
func slice(names []string) string { return joined(names) + ".slice" }

func joined(names []string) string {
	escaped := make([]string, len(names))
	for i, name := range names {
		escaped[i] = strings.ReplaceAll(name, "-", "_")
	}
	return strings.Join(escaped, "-")
}

// parent returns a cgroup in the format of CRI's cgroup_parent.
func (l layout) parent(names []string) string {
	if l.systemd {
		return slice(names)
	}
	return "/" + path.Join(names...)
}

// podOf returns the pod whose cgroup contains a cgroup from a runtime's configuration or from /proc.
func (l layout) podOf(cgroup string) (types.UID, bool) {
	if l.systemd {
		// slice:prefix:name in a configuration, a path of slices in /proc
		slice, _, _ := strings.Cut(cgroup, ":")
		for dir := range strings.SplitSeq(slice, "/") {
			for _, tier := range tiers() {
				if uid, ok := l.uid(tier, dir); ok {
					return uid, true
				}
			}
		}
		return "", false
	}
	rest, ok := strings.CutPrefix(path.Clean("/"+cgroup), "/"+l.dir(l.tier(""))+"/")
	if !ok {
		return "", false
	}
	for _, tier := range tiers() {
		in, ok := strings.CutPrefix(rest, tier)
		in, _, _ = strings.Cut(strings.TrimPrefix(in, "/"), "/")
		if uid, pod := l.uid(tier, in); ok && pod {
			return uid, true
		}
	}
	return "", false
}

// uid returns the pod UID of a directory name in a tier. With systemd underscores are converted to
// dashes.
func (l layout) uid(tier, dir string) (types.UID, bool) {
	if !l.systemd {
		uid, ok := strings.CutPrefix(dir, podPrefix)
		return types.UID(uid), ok && uid != ""
	}
	dir, isSlice := strings.CutSuffix(dir, ".slice")
	uid, ok := strings.CutPrefix(dir, joined(l.tier(tier))+"-"+podPrefix)
	return types.UID(strings.ReplaceAll(uid, "_", "-")), ok && isSlice && uid != ""
}
