package statefulset

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"berth/workloads"
	"berth/workloads/workloadstest"
)

const (
	retain = appsv1.RetainPersistentVolumeClaimRetentionPolicyType
	remove = appsv1.DeletePersistentVolumeClaimRetentionPolicyType
)

func TestClaimsFollowTheRetentionPolicy(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		whenDeleted, whenScaled           appsv1.PersistentVolumeClaimRetentionPolicyType
		created, scaling, scaled, deleted string
	}{
		"retain": {retain, retain, "data-web-0 data-web-1", "data-web-0 data-web-1", "data-web-0 data-web-1",
			"data-web-0 data-web-1"},
		"delete with the set": {remove, retain, "data-web-0/StatefulSet data-web-1/StatefulSet",
			"data-web-0/StatefulSet data-web-1/StatefulSet", "data-web-0/StatefulSet data-web-1/StatefulSet", ""},
		"delete with the pod": {retain, remove, "data-web-0 data-web-1", "data-web-0 data-web-1/Pod", "data-web-0",
			"data-web-0"},
		"delete always": {remove, remove, "data-web-0/StatefulSet data-web-1/StatefulSet",
			"data-web-0/StatefulSet data-web-1/Pod", "data-web-0/StatefulSet", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, fixedRand(), newSet(2, "a", withRetention(c.whenDeleted, c.whenScaled)))
			w.run()
			w.check("claims", w.claims(), c.created)
			w.edit(func(set *appsv1.StatefulSet) { *set.Spec.Replicas = 1 })
			w.syncUntilQuiet()
			w.check("claims while scaling down", w.claims(), c.scaling)
			w.checkPods("web-0:a web-1:a-")
			w.run()
			w.check("claims after scaling down", w.claims(), c.scaled)
			if err := w.s.Delete(w.set()); err != nil {
				t.Fatal(err)
			}
			w.s.CollectGarbage()
			w.check("claims after the deletion", w.claims(), c.deleted)
		})
	}
}

// TestParallelSetWritesInGroups checks that equal writes are neighbors, which the executor applies concurrently, and
// that a rejected claim prevents only its own pod.
func TestParallelSetWritesInGroups(t *testing.T) {
	t.Parallel()
	w := newWorld(t, fixedRand(), newSet(3, "a", both(parallel, withClaims)))
	d := w.decide(w.set(), nil)
	var got []string
	for _, write := range d.Writes {
		got = append(got, fmt.Sprintf("%s %T", write.Verb, write.Object)[len("create *v1."):])
	}
	w.check("writes", strings.Join(got, " "), "ControllerRevision PersistentVolumeClaim PersistentVolumeClaim "+
		"PersistentVolumeClaim Pod Pod Pod")
	w.s.Reject = func(write workloads.Write) error {
		if write.Verb == workloads.Create && write.Object.GetName() == "data-web-1" {
			return errors.New("exceeded quota")
		}
		return nil
	}
	for range 20 {
		w.e.View.CatchUp()
		if _, err := w.sync(); err == nil {
			t.Fatal("no write was rejected")
		}
	}
	w.checkPods("web-0:a! web-2:a!")
	w.s.Reject = nil
	w.run()
	w.checkPods("web-0:a web-1:a web-2:a")
}

func TestClaimsFollowAChangedPolicy(t *testing.T) {
	t.Parallel()
	w := newWorld(t, fixedRand(), newSet(1, "a", withRetention(retain, retain)))
	w.run()
	w.edit(withRetention(remove, retain))
	w.run()
	w.check("claims", w.claims(), "data-web-0/StatefulSet")
	w.edit(withRetention(retain, retain))
	w.run()
	w.check("claims", w.claims(), "data-web-0")
}

func TestClaimsHaveLabelsAndEvents(t *testing.T) {
	t.Parallel()
	w := newWorld(t, fixedRand(), newSet(1, "a", withClaims))
	w.syncUntilQuiet()
	c, _ := workloadstest.Get[*corev1.PersistentVolumeClaim](w.s, namespace, "data-web-0")
	w.check("label", c.Labels["app"], "web")
	w.check("event", w.s.Events[0].Message, "create Claim data-web-0 Pod web-0 in StatefulSet web success")
	if err := w.s.Delete(c); err != nil { // by a user
		t.Fatal(err)
	}
	w.syncUntilQuiet()
	w.check("claims of a pending pod", w.claims(), "data-web-0")
}

func TestPodWaitsForClaimThatIsInTheWay(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		claim  *corev1.PersistentVolumeClaim
		edit   func(*appsv1.StatefulSet)
		events string
	}{
		"terminating": {&corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: "data-web-0",
			Finalizers: []string{"kubernetes.io/pvc-protection"}}}, withClaims, "FailedCreate"},
		"of a former pod": {&corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: "data-web-0",
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: "web-0", UID: "former"}}}},
			withRetention(retain, remove), ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, fixedRand(), newSet(1, "a", c.edit))
			c.claim.Namespace = namespace
			created, err := w.s.Create(c.claim)
			if err != nil {
				t.Fatal(err)
			}
			if len(c.claim.Finalizers) > 0 {
				if err := w.s.Delete(created); err != nil {
					t.Fatal(err)
				}
			}
			w.e.View.CatchUp()
			wake, err := w.sync()
			if err != nil || !wake.Equal(begin.Add(claimRetry)) {
				t.Errorf("wake %v, err %v", wake, err)
			}
			w.checkPods("")
			w.check("events", w.eventReasons(), c.events)
			if err := workloadstest.Edit(w.s, namespace, "data-web-0", func(c *corev1.PersistentVolumeClaim) {
				c.Finalizers = nil
			}); err != nil {
				t.Fatal(err)
			}
			if c, found := workloadstest.Get[*corev1.PersistentVolumeClaim](w.s, namespace, "data-web-0"); found {
				if err := w.s.Delete(c); err != nil {
					t.Fatal(err)
				}
			}
			w.syncUntilQuiet()
			w.checkPods("web-0:a!")
		})
	}
}

func TestClaimsOfOthersAreNotOwned(t *testing.T) {
	t.Parallel()
	w := newWorld(t, fixedRand(), newSet(1, "a", withRetention(remove, retain)))
	if _, err := w.s.Create(&corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: namespace,
		Name: "data-web-0", OwnerReferences: []metav1.OwnerReference{
			{APIVersion: "v1", Kind: "ConfigMap", Name: "x", UID: "y", Controller: new(true)}}}}); err != nil {
		t.Fatal(err)
	}
	w.syncUntilQuiet()
	w.setReady("web-0", true)
	w.syncUntilQuiet()
	w.check("claims", w.claims(), "data-web-0/ConfigMap")
	if got := w.eventReasons(); !strings.Contains(got, "ConflictingController") {
		t.Errorf("got events %q", got)
	}
}

// TestClaimsOfFormerSetAreLeftToGarbageCollector: a set that is deleted and created again must not take over the claims
// that its retention policy deletes.
func TestClaimsOfFormerSetAreLeftToGarbageCollector(t *testing.T) {
	t.Parallel()
	for _, whenDeleted := range []appsv1.PersistentVolumeClaimRetentionPolicyType{retain, remove} {
		for _, whenScaled := range []appsv1.PersistentVolumeClaimRetentionPolicyType{retain, remove} {
			for kind, ref := range map[string]metav1.OwnerReference{
				"set": {APIVersion: "apps/v1", Kind: "StatefulSet", Name: "web", UID: "former", Controller: new(true)},
				"pod": {APIVersion: "v1", Kind: "Pod", Name: "web-0", UID: "former", Controller: new(true)},
			} {
				t.Run(fmt.Sprint(whenDeleted, whenScaled, " ", kind), func(t *testing.T) {
					t.Parallel()
					w := newWorld(t, fixedRand(), newSet(1, "a", withRetention(whenDeleted, whenScaled)))
					w.run()
					if err := workloadstest.Edit(w.s, namespace, "data-web-0", func(c *corev1.PersistentVolumeClaim) {
						c.OwnerReferences = []metav1.OwnerReference{ref}
					}); err != nil {
						t.Fatal(err)
					}
					w.syncUntilQuiet()
					c, _ := workloadstest.Get[*corev1.PersistentVolumeClaim](w.s, namespace, "data-web-0")
					if len(c.OwnerReferences) != 1 || c.OwnerReferences[0].UID != "former" {
						t.Errorf("got owners %v", c.OwnerReferences)
					}
				})
			}
		}
	}
}
