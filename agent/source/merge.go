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

// snapshot merges the good versions of all files. Of two files that want the
// same object the first by name has it and the other is told to be bad.
func (f *Folder) snapshot() Snapshot {
	out := Snapshot{Source: File, Ready: f.ready, Objects: map[ObjectKey]plan.Object{}}
	if f.dirBad != nil {
		out.Bad = append(out.Bad, *f.dirBad)
	}
	before := f.clashes
	f.clashes = map[string]time.Time{}
	pods := map[types.NamespacedName]string{}
	objects := map[ObjectKey]string{}
	for _, path := range slices.Sorted(maps.Keys(f.files)) {
		s := f.files[path]
		out.Bad = append(out.Bad, s.bad...)
		if s.good == nil {
			continue
		}
		clash := func(kind string, key types.NamespacedName, line int, first string) {
			b := BadFile{Path: path, Line: line, Field: "metadata.name", Message: fmt.Sprintf("%s %s is in %s already", kind, key, first)}
			since, known := before[b.String()]
			if !known {
				since = f.opt.Now()
				f.opt.Log.Error("Two manifest files want the same object; the first by name has it", "file", path, "reason", b.Message)
			}
			f.clashes[b.String()] = since
			b.Since = since
			out.Bad = append(out.Bad, b)
		}
		for _, pod := range s.good.Pods {
			key := types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name}
			if first, taken := pods[key]; taken {
				clash("Pod", key, s.good.lines[key], first)
				continue
			}
			pods[key] = path
			out.Pods = append(out.Pods, pod)
		}
		for key, o := range s.good.Objects {
			if first, taken := objects[key]; taken {
				clash(string(key.Kind), key.NamespacedName, s.good.lines[key], first)
				continue
			}
			objects[key] = path
			out.Objects[key] = o
		}
		out.Warnings = append(out.Warnings, s.good.Warnings...)
	}
	slices.SortFunc(out.Pods, func(a, b *corev1.Pod) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	slices.SortStableFunc(out.Bad, func(a, b BadFile) int {
		return cmp.Or(cmp.Compare(a.Path, b.Path), cmp.Compare(a.Line, b.Line), cmp.Compare(a.Message, b.Message))
	})
	return out
}
