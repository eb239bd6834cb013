package statefulset

import (
	"slices"
	"strconv"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"berth/podspec"
	"berth/workloads"
	"berth/workloads/workloadstest"
)

// revisions describes the revisions by number: "1:image".
func (w *world) revisions() string {
	list := workloadstest.List[*appsv1.ControllerRevision](w.s)
	slices.SortFunc(list, func(a, b *appsv1.ControllerRevision) int { return int(a.Revision - b.Revision) })
	var out []string
	for _, r := range list {
		template, err := workloads.RevisionTemplate(r)
		if err != nil {
			w.t.Fatal(err)
		}
		out = append(out, strconv.FormatInt(r.Revision, 10)+":"+template.Spec.Containers[0].Image)
	}
	return strings.Join(out, " ")
}

func TestRevisionsAreKeptToTheLimitAndRolledBack(t *testing.T) {
	t.Parallel()
	w := newWorld(t, fixedRand(), newSet(1, "a", func(set *appsv1.StatefulSet) {
		set.Spec.RevisionHistoryLimit = new(int32(2))
		set.Annotations = map[string]string{"kubernetes.io/change-cause": "why"}
	}))
	for _, image := range []string{"a", "b", "c"} {
		w.setImage(image)
		w.run()
	}
	w.check("revisions", w.revisions(), "1:a 2:b 3:c")
	w.setImage("a")
	w.run()
	w.check("revisions after the rollback", w.revisions(), "2:b 3:c 4:a")
	w.checkPods("web-0:a")
	w.setImage("d")
	w.run()
	w.check("revisions", w.revisions(), "3:c 4:a 5:d")
	r := workloadstest.List[*appsv1.ControllerRevision](w.s)[0]
	w.check("cause", r.Annotations["kubernetes.io/change-cause"], "why")
	w.check("hash label", setName+"-"+r.Labels[hashLabel], r.Name)
}

func TestRevisionsOfPodsAreKept(t *testing.T) {
	t.Parallel()
	w := newWorld(t, fixedRand(), newSet(2, "a", func(set *appsv1.StatefulSet) {
		set.Spec.RevisionHistoryLimit = new(int32(0))
		onDelete(set)
	}))
	w.run()
	w.setImage("b")
	w.run()
	w.setImage("c")
	w.run()
	w.check("revisions", w.revisions(), "1:a 3:c")
}

func TestHashIsUpstreams(t *testing.T) {
	t.Parallel()
	// The data and the name of a revision that Kubernetes 1.33 wrote.
	data := `{"spec":{"template":{"$patch":"replace","metadata":{"annotations":{"test":"value"},` +
		`"creationTimestamp":null,"labels":{"app":"foo"}},"spec":{"containers":[{"image":"test",` +
		`"imagePullPolicy":"Always","name":"test","resources":{},"terminationMessagePath":"/dev/termination-log",` +
		`"terminationMessagePolicy":"File"}],"dnsPolicy":"ClusterFirst","restartPolicy":"Always",` +
		`"schedulerName":"default-scheduler","securityContext":{},"terminationGracePeriodSeconds":30}}}}`
	if got := hash([]byte(data), 0); got != "c77f6d978" {
		t.Errorf("hash %q", got)
	}
	revision := &appsv1.ControllerRevision{Data: runtime.RawExtension{Raw: []byte(data)}}
	template, err := workloads.RevisionTemplate(revision)
	if err != nil {
		t.Fatal(err)
	}
	now, err := workloads.RevisionData(template)
	if err != nil {
		t.Fatal(err)
	}
	if want := strings.Replace(data, `"creationTimestamp":null,`, "", 1); string(now) != want {
		t.Errorf("data %s", now)
	}
}

func TestRevisionOfOlderServerStartsNoRollout(t *testing.T) {
	t.Parallel()
	w := newWorld(t, fixedRand(), newSet(1, "a", nil))
	w.run()
	if err := workloadstest.Edit(w.s, namespace, w.set().Status.CurrentRevision, func(r *appsv1.ControllerRevision) {
		older := strings.Replace(string(r.Data.Raw), `"metadata":{`, `"metadata":{"creationTimestamp":null,`, 1)
		r.Data.Raw = []byte(older)
	}); err != nil {
		t.Fatal(err)
	}
	before := w.pods() + w.set().Status.UpdateRevision
	w.run()
	w.check("pods and revision", w.pods()+w.set().Status.UpdateRevision, before)
	w.check("revisions", w.revisions(), "1:a")
}

func TestCollisionOfRevisionNames(t *testing.T) {
	t.Parallel()
	set := newSet(1, "a", nil)
	podspec.SetTemplateDefaults(&set.Spec.Template)
	data, err := workloads.RevisionData(&set.Spec.Template)
	if err != nil {
		t.Fatal(err)
	}
	w := newWorld(t, fixedRand(), set)
	taken := &appsv1.ControllerRevision{Data: runtime.RawExtension{Raw: []byte(`{"x":1}`)}}
	taken.Namespace, taken.Name = namespace, setName+"-"+hash(data, 0)
	if _, err := w.s.Create(taken); err != nil {
		t.Fatal(err)
	}
	w.syncUntilQuiet()
	w.check("revision", w.set().Status.UpdateRevision, setName+"-"+hash(data, 1))
	if n := w.set().Status.CollisionCount; n == nil || *n != 1 {
		t.Errorf("collisions %v", n)
	}
}

func TestOrphanedRevisionsAreAdopted(t *testing.T) {
	t.Parallel()
	w := newWorld(t, fixedRand(), newSet(1, "a", nil))
	w.run()
	name := w.set().Status.CurrentRevision
	if err := workloadstest.Edit(w.s, namespace, name, func(r *appsv1.ControllerRevision) {
		r.OwnerReferences = nil
	}); err != nil {
		t.Fatal(err)
	}
	w.syncUntilQuiet()
	r, _ := workloadstest.Get[*appsv1.ControllerRevision](w.s, namespace, name)
	if len(r.OwnerReferences) != 1 || r.OwnerReferences[0].UID != w.set().UID {
		t.Errorf("owners %v", r.OwnerReferences)
	}
}
