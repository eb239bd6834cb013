package registry

import (
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

func TestTemplateGeneration(t *testing.T) {
	t.Parallel()
	set := func(generation, hostname string) *appsv1.DaemonSet {
		d := &appsv1.DaemonSet{}
		if generation != "" {
			d.Annotations = map[string]string{appsv1.DeprecatedTemplateGeneration: generation, "other": "kept"}
		}
		d.Spec.Template.Spec.Hostname = hostname
		return d
	}
	update := func(prepare func(obj, old runtime.Object), d, old *appsv1.DaemonSet) *appsv1.DaemonSet {
		prepare(d, old)
		return d
	}
	onUpdate := func(obj, old runtime.Object) { prepareDaemonSetUpdate(t.Context(), obj, old) }
	onStatus := func(obj, old runtime.Object) { prepareDaemonSetStatus(t.Context(), obj, old) }
	create := func(d *appsv1.DaemonSet) *appsv1.DaemonSet { prepareDaemonSet(t.Context(), d); return d }
	for name, c := range map[string]struct {
		got  *appsv1.DaemonSet
		want string
	}{
		"new":                                 {create(set("", "a")), "1"},
		"new with a count":                    {create(set("7", "a")), "7"},
		"new with a negative count":           {create(set("-7", "a")), "1"},
		"new with text":                       {create(set("seven", "a")), "seven"},
		"same template":                       {update(onUpdate, set("3", "a"), set("3", "a")), "3"},
		"changed template":                    {update(onUpdate, set("3", "b"), set("3", "a")), "4"},
		"the client removed the count":        {update(onUpdate, set("", "a"), set("3", "a")), "3"},
		"the client changed the count":        {update(onUpdate, set("9", "a"), set("3", "a")), "3"},
		"stored without a count":              {update(onUpdate, set("", "b"), set("", "a")), "1"},
		"the status update changed the count": {update(onStatus, set("9", "a"), set("3", "a")), "3"},
	} {
		if got := c.got.Annotations[appsv1.DeprecatedTemplateGeneration]; got != c.want {
			t.Errorf("%s: got %q, want %q", name, got, c.want)
		}
	}
}
