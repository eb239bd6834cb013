package localworkloads

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	"k8s.io/apimachinery/pkg/types"

	"berth/agent/source"
	"berth/workloads"
)

// stepText is a step without the generated parts of names.
func stepText(s Step, images bool) string {
	verb, name := "create", s.Pod.Name
	if s.Verb == workloads.Delete {
		verb = "delete"
	}
	if images {
		name = s.Pod.Spec.Containers[0].Image
	}
	return verb + " " + name
}

func TestPreview(t *testing.T) {
	t.Parallel()
	surge := strings.Replace(deploymentManifest, "  template:",
		"  strategy: {rollingUpdate: {maxSurge: 1, maxUnavailable: 0}}\n  template:", 1)
	set := func(kind string, replicas, version int) string {
		text := strings.ReplaceAll(setManifest, "KIND", kind)
		if kind == "StatefulSet" {
			text = strings.Replace(text, "spec:", fmt.Sprintf("spec:\n  replicas: %d", replicas), 1)
		}
		return strings.ReplaceAll(text, "web:1", fmt.Sprintf("web:%d", version))
	}
	for _, c := range []struct {
		name, before, after string
		names               bool // compare names of pods instead of images
		steps               string
		fields              string
		replaced, changed   bool
	}{
		{name: "new", after: fmt.Sprintf(surge, 2, 1), changed: true, steps: "create web:1, create web:1"},
		{name: "unchanged", before: fmt.Sprintf(surge, 2, 1), after: fmt.Sprintf(surge, 2, 1)},
		{name: "rolling update", before: fmt.Sprintf(surge, 2, 1), after: fmt.Sprintf(surge, 2, 2), changed: true,
			fields: "spec.template.spec.containers[0].image",
			steps:  "create web:2, delete web:1, create web:2, delete web:1"},
		{name: "scaled down", before: fmt.Sprintf(surge, 3, 1), after: fmt.Sprintf(surge, 1, 1), changed: true,
			fields: "spec.replicas", steps: "delete web:1, delete web:1"},
		{name: "recreated", before: strings.Replace(fmt.Sprintf(deploymentManifest, 2, 1), "  template:",
			"  strategy: {type: Recreate}\n  template:", 1),
			after: strings.Replace(fmt.Sprintf(deploymentManifest, 2, 2), "  template:",
				"  strategy: {type: Recreate}\n  template:", 1), changed: true,
			fields: "spec.template.spec.containers[0].image",
			steps:  "delete web:1, delete web:1, create web:2, create web:2"},
		{name: "other selector", before: fmt.Sprintf(surge, 1, 1),
			after: strings.ReplaceAll(fmt.Sprintf(surge, 1, 1), "app: web", "app: other"), changed: true,
			replaced: true, fields: "spec.selector.matchLabels[app], spec.template.metadata.labels[app]",
			steps: "delete web:1, create web:1"},
		{name: "StatefulSet", before: set("StatefulSet", 2, 1), after: set("StatefulSet", 3, 2), changed: true,
			names: true, fields: "spec.replicas, spec.template.spec.containers[0].image",
			steps: "create web-2, delete web-1, create web-1, delete web-0, create web-0"},
		{name: "DaemonSet", before: set("DaemonSet", 1, 1), after: set("DaemonSet", 1, 2), changed: true,
			fields: "spec.template.spec.containers[0].image", steps: "delete web:1, create web:2"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, 0)
			if c.before != "" {
				w.files["web"] = c.before
				w.reconciler.SetFiles(workloadsOf(t, w.files))
				w.settle()
			}
			p := w.reconciler.Preview(workloadsOf(t, map[string]string{"manifest": c.after}), w.now)[0]
			var steps []string
			for _, s := range p.Steps {
				steps = append(steps, stepText(s, !c.names))
			}
			if got := strings.Join(steps, ", "); got != c.steps {
				t.Errorf("steps %q, want %q", got, c.steps)
			}
			if got := strings.Join(p.Fields, ", "); got != c.fields {
				t.Errorf("fields %q, want %q", got, c.fields)
			}
			if p.Changed != c.changed || p.Replaced() != c.replaced || !p.Settled || p.NameTaken || p.Expired {
				t.Errorf("unexpected preview %+v", p)
			}
		})
	}
}

// TestPreviewOfRollout checks what the steps of a rollout wait for, and which overrides end.
func TestPreviewOfRollout(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 0)
	manifest := strings.Replace(deploymentManifest, "  template:",
		"  minReadySeconds: 30\n  strategy: {rollingUpdate: {maxSurge: 1, maxUnavailable: 0}}\n  template:", 1)
	w.files["web"] = fmt.Sprintf(manifest, 1, 1)
	w.reconciler.SetFiles(workloadsOf(t, w.files))
	w.settle()
	k := source.WorkloadKey{Kind: "Deployment", NamespacedName: types.NamespacedName{Namespace: "default", Name: "web"}}
	if err := w.reconciler.Scale(k, 2, w.now); err != nil {
		t.Fatal(err)
	}
	w.settle()
	p := w.reconciler.Preview(workloadsOf(t, map[string]string{"web": fmt.Sprintf(manifest, 2, 2)}), w.now)[0]
	if len(p.Steps) != 4 || p.Overrides["scale"] != "2 replicas" {
		t.Fatalf("unexpected preview %+v", p)
	}
	for i, want := range []string{"", "pod " + p.Steps[0].Pod.Name + " is ready and 30s",
		"pod " + p.Steps[0].Pod.Name + " is ready and 30s", "pod " + p.Steps[2].Pod.Name +
			" is ready and pod " + p.Steps[1].Pod.Name + " is deleted and 30s"} {
		if got := p.Steps[i].After; got != want {
			t.Errorf("step %d (%s) is after %q, want %q", i, stepText(p.Steps[i], true), got, want)
		}
	}
	if _, _, err := w.reconciler.Undo(k, 0, w.now); err == nil {
		t.Error("the preview created a revision")
	}
}

// TestPreviewOfJobs checks Jobs that have been deleted after their TTL, CronJobs, and names that are in use.
func TestPreviewOfJobs(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 0)
	w.files["job"] = fmt.Sprintf(jobManifest, 2)
	cron := `apiVersion: batch/v1
kind: CronJob
metadata: {name: tick}
spec:
  schedule: "*/10 * * * *"
  jobTemplate: {spec: {template: {spec: {restartPolicy: Never, containers: [{name: c, image: "tick:1"}]}}}}
`
	first := w.reconciler.Preview(workloadsOf(t, map[string]string{"cron": cron, "job": w.files["job"]}), w.now)
	if want := w.now.Add(10 * time.Minute); !first[0].Next.Equal(want) || len(first[0].Steps) != 0 {
		t.Errorf("unexpected preview of the CronJob %+v, want next %v", first[0], want)
	}
	if n := len(first[1].Steps); n != 8 { // four completions, deleted after the TTL
		t.Errorf("%d steps: %+v", n, first[1].Steps)
	}
	w.reconciler.SetFiles(workloadsOf(t, w.files))
	w.settle()
	p := w.reconciler.Preview(workloadsOf(t, map[string]string{"job": w.files["job"]}), w.now)[0]
	if !p.Expired || p.Changed || len(p.Steps) != 0 {
		t.Errorf("unexpected preview of the expired Job %+v", p)
	}

	w.files["cron"] = cron
	w.reconciler.SetFiles(workloadsOf(t, w.files))
	w.syncAll()
	w.now = w.now.Add(10 * time.Minute)
	w.syncAll()
	owned := list[*batchv1.Job](w.reconciler.store, "")[0]
	text := strings.Replace(w.files["job"], "name: count", "name: "+owned.Name, 1)
	p = w.reconciler.Preview(workloadsOf(t, map[string]string{"job": text}), w.now)[0]
	if !p.NameTaken || len(p.Steps) != 0 {
		t.Errorf("unexpected preview of a Job with the name of another %+v", p)
	}
}

// TestPreviewPredicts compares previews of random edits with what then happens, if every pod becomes ready: the same
// pods are created and deleted, and a preview changes nothing.
func TestPreviewPredicts(t *testing.T) {
	t.Parallel()
	seeds := 16
	if testing.Short() {
		seeds = 8
	}
	for seed := range seeds {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, uint64(seed))
			edit := func() {
				w.files["web"] = fmt.Sprintf(deploymentManifest, 1+w.rand.IntN(4), w.rand.IntN(3))
				w.files["set"] = strings.NewReplacer("KIND", []string{"StatefulSet", "DaemonSet"}[seed%2], "web", "set",
					":1", fmt.Sprint(":", w.rand.IntN(3))).Replace(setManifest)
			}
			edit()
			w.reconciler.SetFiles(workloadsOf(t, w.files))
			for range w.rand.IntN(40) {
				w.now = w.now.Add(time.Second)
				w.advance()
				w.sync(true)
			}
			w.reconciler.failures = map[types.UID]failure{} // a back-off would end at some time of its own
			for k := range w.reconciler.store.entries {
				w.reconciler.queue.add(k)
			}
			w.sync(false)
			edit()
			files := workloadsOf(t, w.files)
			before, predicted := w.state(), map[string]bool{}
			for _, p := range w.reconciler.Preview(files, w.now) {
				if !p.Settled {
					t.Errorf("the preview of %s does not settle", p.New.GetName())
				}
				for _, s := range p.Steps {
					predicted[stepText(s, false)] = true
				}
			}
			if after := w.state(); after != before {
				t.Errorf("the preview changed\n%s\nto\n%s", before, after)
			}
			w.reconciler.SetFiles(files)
			happened := w.observeSteps()
			if fmt.Sprint(predicted) != fmt.Sprint(happened) {
				t.Errorf("predicted %v, happened %v", predicted, happened)
			}
		})
	}
}

// state is everything that the reconciler knows.
func (w *world) state() string {
	w.t.Helper()
	e := w.reconciler
	views, err := json.Marshal(e.Views())
	if err != nil {
		w.t.Fatal(err)
	}
	return fmt.Sprint(string(views), len(e.store.dirty), e.store.version, e.store.removed, e.queue, e.wakes, e.failures,
		e.failed, e.created, e.byUID, len(e.files))
}

// observeSteps lets the world settle and returns the pods that are created and deleted.
func (w *world) observeSteps() map[string]bool {
	out, known, deleting := map[string]bool{}, map[types.UID]bool{}, map[types.UID]bool{}
	for uid, pod := range w.pods {
		known[uid], deleting[uid] = true, pod.DeletionTimestamp != nil
	}
	for range 100 {
		w.sync(false)
		for uid, pod := range w.pods {
			if !known[uid] {
				out["create "+pod.Name] = true
			}
			if pod.DeletionTimestamp != nil && !deleting[uid] {
				out["delete "+pod.Name] = true
			}
			known[uid], deleting[uid] = true, pod.DeletionTimestamp != nil
		}
		for uid, pod := range w.pods {
			switch {
			case pod.DeletionTimestamp != nil:
				delete(w.pods, uid)
				w.reconciler.PodDeleted(uid, w.now)
			case !workloads.Terminated(pod) && workloads.ReadySince(pod) == nil:
				w.setStatus(pod, "Running", true)
			}
		}
	}
	return out
}
