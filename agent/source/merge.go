package source

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"berth/agent/plan"
)

// snapshot merges the valid versions of all files. Of files with the same object, one owns it (see
// owner), and the others are reported as errors.
func (f *Directory) snapshot() Snapshot {
	out := Snapshot{Source: File, Ready: f.ready, Objects: map[ObjectKey]plan.Object{}}
	if f.dirError != nil {
		out.FileErrors = append(out.FileErrors, *f.dirError)
	}
	before := f.conflicts
	f.conflicts, f.owners = map[string]time.Time{}, f.assignOwners()
	for _, path := range slices.Sorted(maps.Keys(f.files)) {
		s := f.files[path]
		out.FileErrors = append(out.FileErrors, s.errors...)
		if s.good == nil {
			continue
		}
		clash := func(kind string, key types.NamespacedName, line int, owner string) {
			b := FileError{
				Path:    path,
				Line:    line,
				Field:   "metadata.name",
				Message: fmt.Sprintf("%s %s is already defined in %s", kind, key, owner),
			}
			since, known := before[b.String()]
			if !known {
				since = f.opt.Now()
				f.opt.Log.Error("duplicate object in manifest files", "file", path, "err", b.Message)
			}
			f.conflicts[b.String()] = since
			b.Since = since
			out.FileErrors = append(out.FileErrors, b)
		}
		for _, pod := range s.good.Pods {
			key := types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name}
			if owner := f.owners[key]; owner != path {
				clash("Pod", key, s.good.lines[key], owner)
				continue
			}
			out.Pods = append(out.Pods, pod)
		}
		for _, w := range s.good.Workloads {
			key := w.Key()
			if owner := f.owners[key]; owner != path {
				clash(key.Kind, key.NamespacedName, s.good.lines[key], owner)
				continue
			}
			out.Workloads = append(out.Workloads, w)
		}
		for _, svc := range s.good.Services {
			key := serviceKey(svc)
			if owner := f.owners[key]; owner != path {
				clash("Service", key.NamespacedName, s.good.lines[key], owner)
				continue
			}
			out.Services = append(out.Services, svc)
		}
		for key, o := range s.good.Objects {
			if owner := f.owners[key]; owner != path {
				clash(string(key.Kind), key.NamespacedName, s.good.lines[key], owner)
				continue
			}
			out.Objects[key] = o
		}
		out.Warnings = append(out.Warnings, s.good.Warnings...)
	}
	out.sort()
	return out
}

// sort orders everything as Snapshot says.
func (out *Snapshot) sort() {
	slices.SortFunc(out.Pods, func(a, b *corev1.Pod) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	slices.SortFunc(out.Workloads, func(a, b Workload) int {
		return cmp.Compare(a.Key().String(), b.Key().String())
	})
	slices.SortFunc(out.Services, func(a, b *corev1.Service) int {
		return cmp.Compare(serviceKey(a).String(), serviceKey(b).String())
	})
	slices.SortStableFunc(out.FileErrors, func(a, b FileError) int {
		return cmp.Or(cmp.Compare(a.Path, b.Path), cmp.Compare(a.Line, b.Line), cmp.Compare(a.Message, b.Message))
	})
}

// assignOwners returns the file that owns each desired object: pods by name, other objects by key.
func (f *Directory) assignOwners() map[any]string {
	want := map[any][]string{}
	for _, path := range slices.Sorted(maps.Keys(f.files)) {
		s := f.files[path]
		if s.good == nil {
			continue
		}
		for _, pod := range s.good.Pods {
			key := types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name}
			want[key] = append(want[key], path)
		}
		for _, w := range s.good.Workloads {
			want[w.Key()] = append(want[w.Key()], path)
		}
		for _, svc := range s.good.Services {
			want[serviceKey(svc)] = append(want[serviceKey(svc)], path)
		}
		for key := range s.good.Objects {
			want[key] = append(want[key], path)
		}
	}
	out := make(map[any]string, len(want))
	for key, paths := range want {
		out[key] = f.owner(key, paths)
	}
	return out
}

// owner returns which of the files with an object owns it: the previous owner, or else the first by
// name. At the start it is the file whose pods the previous run of the agent knew.
func (f *Directory) owner(key any, paths []string) string {
	switch had := f.owners[key]; {
	case len(paths) == 1:
		return paths[0]
	case slices.Contains(paths, had):
		return had
	}
	return slices.MaxFunc(paths, func(x, y string) int { return f.knownRank(key, x) - f.knownRank(key, y) })
}

// knownRank returns how well the previous run knew the pods of a file: 2 for an unchanged pod, 1
// for a pod whose manifest has changed, 0 for none.
func (f *Directory) knownRank(key any, path string) (most int) {
	name, isPod := key.(types.NamespacedName)
	for _, pod := range f.files[path].good.Pods {
		if f.opt.PreviousPod == nil ||
			isPod && name != (types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name}) {
			continue
		}
		switch was := f.opt.PreviousPod(pod.UID); {
		case was == nil || was.Name != pod.Name:
		case ManifestChanged(was, pod):
			most = max(most, 1)
		default:
			most = 2
		}
	}
	return most
}
