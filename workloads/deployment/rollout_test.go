package deployment

import (
	"maps"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
)

type sets = []*appsv1.ReplicaSet

func TestLimits(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		replicas                   int32
		surge, unavailable         string
		wantSurge, wantUnavailable int32
	}{
		{10, "25%", "25%", 3, 2},
		{4, "25%", "25%", 1, 1},
		{1, "25%", "25%", 1, 0},
		{3, "2", "1", 2, 1},
		{3, "0", "0", 0, 1},
		{1, "0%", "10%", 0, 1},
		{2, "0", "100%", 0, 2},
		{2, "0", "5", 0, 2},
		{0, "50%", "50%", 0, 0},
		{3, "oops%", "1", 0, 1},
	} {
		d := newDeployment(c.replicas, rolling(c.surge, c.unavailable))
		if s, u := maxSurge(d), maxUnavailable(d); s != c.wantSurge || u != c.wantUnavailable {
			t.Errorf("%d replicas, surge %s, unavailable %s: %d and %d, want %d and %d",
				c.replicas, c.surge, c.unavailable, s, u, c.wantSurge, c.wantUnavailable)
		}
	}
	if d := newDeployment(4, recreating); maxSurge(d) != 0 || maxUnavailable(d) != 0 {
		t.Error("Recreate has limits")
	}
}

func TestRollout(t *testing.T) {
	t.Parallel()
	d10 := newDeployment(10, image("v2"), rolling("3", "2"))
	r3 := newDeployment(3, image("v2"), recreating)
	observed := func(n int64) setOption {
		return func(rs *appsv1.ReplicaSet) { rs.Status.ObservedGeneration = n }
	}
	for _, c := range []struct {
		name string
		d    *appsv1.Deployment
		sets sets
		pods []*corev1.Pod
		want map[string]int32
	}{
		{name: "the first ReplicaSet gets all replicas", d: newDeployment(3), want: map[string]int32{"v1": 3}},
		{name: "nothing to do", d: newDeployment(3), sets: sets{newSet(newDeployment(3), "v1", 3, 3, 1)}},
		{
			name: "the new ReplicaSet gets the surge, old ones go down to the minimum", d: d10,
			sets: sets{newSet(d10, "v1", 10, 10, 1)}, want: map[string]int32{"v2": 3, "v1": 8},
		},
		{
			name: "unavailable new replicas hold the old ones", d: d10,
			sets: sets{newSet(d10, "v1", 8, 8, 1), newSet(d10, "v2", 5, 0, 2)},
		},
		{
			name: "freed replicas go to the new ReplicaSet before old ones are scaled down", d: d10,
			sets: sets{newSet(d10, "v1", 8, 8, 1), newSet(d10, "v2", 3, 3, 2)}, want: map[string]int32{"v2": 5},
		},
		{
			name: "old ones are scaled down by the available new replicas", d: d10,
			sets: sets{newSet(d10, "v1", 8, 8, 1), newSet(d10, "v2", 5, 2, 2)}, want: map[string]int32{"v1": 6},
		},
		{
			name: "the oldest goes first", d: d10,
			sets: sets{newSet(d10, "v0", 4, 4, 1), newSet(d10, "v1", 4, 4, 2), newSet(d10, "v2", 5, 5, 3)},
			want: map[string]int32{"v0": 0, "v1": 3},
		},
		{
			name: "unhealthy old replicas go before healthy ones", d: d10,
			sets: sets{newSet(d10, "v0", 4, 4, 1), newSet(d10, "v1", 4, 1, 2), newSet(d10, "v2", 5, 2, 3)},
			want: map[string]int32{"v1": 2},
		},
		{
			name: "an old status does not count replicas that are being deleted", d: d10,
			sets: sets{newSet(d10, "v1", 8, 10, 1), newSet(d10, "v2", 5, 5, 2)}, want: map[string]int32{"v1": 3},
		},
		{
			name: "a new ReplicaSet that is too large is scaled down", d: newDeployment(3),
			sets: sets{newSet(newDeployment(3), "v1", 5, 5, 1)}, want: map[string]int32{"v1": 3},
		},
		{
			name: "no replicas", d: newDeployment(0, image("v2")),
			sets: sets{newSet(newDeployment(0), "v1", 0, 0, 1)}, want: map[string]int32{"v2": 0},
		},
		{
			name: "Recreate scales old ones down first", d: r3, sets: sets{newSet(r3, "v1", 3, 3, 1)},
			want: map[string]int32{"v1": 0},
		},
		{
			name: "Recreate waits for the ReplicaSet", d: r3,
			sets: sets{newSet(r3, "v1", 0, 0, 1, observed(0))},
		},
		{
			name: "Recreate waits for replicas", d: r3,
			sets: sets{newSet(r3, "v1", 0, 0, 1, func(rs *appsv1.ReplicaSet) { rs.Status.Replicas = 1 })},
		},
		{
			name: "Recreate waits for terminating replicas", d: r3,
			sets: sets{newSet(r3, "v1", 0, 0, 1, func(rs *appsv1.ReplicaSet) { *rs.Status.TerminatingReplicas = 1 })},
		},
		{
			name: "Recreate waits for old pods", d: r3, sets: sets{newSet(r3, "v1", 0, 0, 1)},
			pods: []*corev1.Pod{podOf(newSet(r3, "v1", 0, 0, 1), corev1.PodRunning)},
		},
		{
			name: "Recreate does not wait for finished pods", d: r3, sets: sets{newSet(r3, "v1", 0, 0, 1)},
			pods: []*corev1.Pod{podOf(newSet(r3, "v1", 0, 0, 1), corev1.PodFailed)}, want: map[string]int32{"v2": 3},
		},
		{
			name: "Recreate does not wait for new pods", d: r3,
			sets: sets{newSet(r3, "v1", 0, 0, 1), newSet(r3, "v2", 1, 1, 2)},
			pods: []*corev1.Pod{podOf(newSet(r3, "v2", 1, 1, 2), corev1.PodRunning)}, want: map[string]int32{"v2": 3},
		},
		{
			name: "a deleted Deployment changes nothing",
			d: newDeployment(3, image("v2"), func(d *appsv1.Deployment) {
				d.DeletionTimestamp = new(at(0))
			}),
			sets: sets{newSet(newDeployment(3), "v1", 3, 3, 1)},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			out := Decide(Input{Now: now, Deployment: c.d, ReplicaSets: c.sets, Pods: c.pods})
			if got := sizes(t, out.Writes); !maps.Equal(got, c.want) {
				t.Errorf("sizes %v, want %v", got, c.want)
			}
		})
	}
}

func TestScaling(t *testing.T) {
	t.Parallel()
	// 10 replicas and a surge of 3, so ReplicaSets were sized for 13.
	scaledTo := func(n int32, options ...deploymentOption) *appsv1.Deployment {
		return newDeployment(n, append([]deploymentOption{image("v2"), rolling("3", "2")}, options...)...)
	}
	d10 := scaledTo(10)
	middle := sets{newSet(d10, "v1", 8, 8, 1), newSet(d10, "v2", 5, 2, 2)}
	for _, c := range []struct {
		name string
		d    *appsv1.Deployment
		sets sets
		want map[string]int32
	}{
		{
			name: "the only active ReplicaSet gets all", d: scaledTo(5),
			sets: sets{newSet(d10, "v1", 0, 0, 1), newSet(d10, "v2", 10, 10, 2)}, want: map[string]int32{"v2": 5},
		},
		{
			name: "an old one too, before the new one is created", d: scaledTo(5),
			sets: sets{newSet(d10, "v1", 10, 10, 1)}, want: map[string]int32{"v1": 5},
		},
		{
			name: "in proportion up", d: scaledTo(20), sets: middle,
			// 23 instead of 13: 8 → 14.15, 5 → 8.85
			want: map[string]int32{"v1": 14, "v2": 9},
		},
		{
			name: "in proportion down", d: scaledTo(5), sets: middle,
			// 8 instead of 13: 8 → 4.9, 5 → 3.1
			want: map[string]int32{"v1": 5, "v2": 3},
		},
		{name: "to zero", d: scaledTo(0), sets: middle, want: map[string]int32{"v1": 0, "v2": 0}},
		{
			name: "of equal ones the newer gets the rest", d: scaledTo(10),
			sets: sets{newSet(d10, "v1", 6, 6, 1, sized(9, 12)), newSet(d10, "v2", 6, 6, 2, sized(9, 12))},
			want: map[string]int32{"v1": 6, "v2": 7},
		},
		{
			name: "of equal ones the older loses the rest", d: scaledTo(8),
			sets: sets{newSet(d10, "v1", 6, 6, 1, sized(10, 12)), newSet(d10, "v2", 6, 6, 2, sized(10, 12))},
			want: map[string]int32{"v1": 5, "v2": 6},
		},
		{
			name: "without an annotation the status is the measure",
			d:    scaledTo(20, func(d *appsv1.Deployment) { d.Status.Replicas = 13 }),
			sets: sets{
				newSet(d10, "v1", 8, 8, 1), newSet(d10, "v2", 5, 2, 2, annotated(maxReplicasAnnotation, "")),
			},
			want: map[string]int32{"v1": 14, "v2": 9},
		},
		{
			name: "a saturated new ReplicaSet ends adopted old ones", d: scaledTo(10),
			sets: sets{newSet(d10, "v1", 4, 4, 1, sized(4, 4)), newSet(d10, "v2", 10, 10, 2)},
			want: map[string]int32{"v1": 0},
		},
		{
			name: "only annotations differ", d: scaledTo(10),
			sets: sets{newSet(d10, "v2", 10, 10, 2, sized(4, 7))}, want: map[string]int32{"v2": 10},
		},
		{
			name: "a paused Deployment is scaled", d: scaledTo(4, paused),
			sets: sets{newSet(d10, "v1", 10, 10, 1)}, want: map[string]int32{"v1": 4},
		},
		{
			name: "a paused Deployment does not start a rollout", d: scaledTo(10, paused),
			sets: sets{newSet(d10, "v1", 10, 10, 1)},
		},
		{
			name: "a paused Deployment without active ReplicaSets scales the newest", d: scaledTo(10, paused),
			sets: sets{newSet(d10, "v0", 0, 0, 1), newSet(d10, "v1", 0, 0, 2)}, want: map[string]int32{"v1": 10},
		},
		{
			name: "Recreate does not scale several in proportion but goes on",
			d:    newDeployment(20, image("v2"), recreating), sets: middle, want: map[string]int32{"v1": 0},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			out := Decide(Input{Now: now, Deployment: c.d, ReplicaSets: c.sets})
			if got := sizes(t, out.Writes); !maps.Equal(got, c.want) {
				t.Errorf("sizes %v, want %v", got, c.want)
			}
		})
	}
}

func TestHistoryIsCleanedUp(t *testing.T) {
	t.Parallel()
	limited := func(limit int32, options ...deploymentOption) *appsv1.Deployment {
		d := newDeployment(1, append(options, image("v4"))...)
		d.Spec.RevisionHistoryLimit = &limit
		d.Status.Replicas, d.Status.UpdatedReplicas, d.Status.AvailableReplicas = 1, 1, 1
		return d
	}
	d := limited(10)
	history := func(options ...setOption) sets {
		return sets{
			newSet(d, "v1", 0, 0, 3), // the oldest, but used again
			newSet(d, "v2", 0, 0, 1, options...), newSet(d, "v3", 0, 0, 2), newSet(d, "v4", 1, 1, 4),
		}
	}
	for _, c := range []struct {
		name string
		d    *appsv1.Deployment
		sets sets
		want map[string]int32
	}{
		{name: "below the limit", d: limited(3), sets: history()},
		{name: "the lowest revision goes", d: limited(2), sets: history(), want: map[string]int32{"v2": -1}},
		{name: "all go", d: limited(0), sets: history(), want: map[string]int32{"v1": -1, "v2": -1, "v3": -1}},
		{
			name: "replicas keep one", d: limited(2),
			sets: history(func(rs *appsv1.ReplicaSet) { rs.Status.Replicas = 1 }),
		},
		{
			name: "one that is not observed stays", d: limited(2),
			sets: history(func(rs *appsv1.ReplicaSet) { rs.Generation = 2 }),
		},
		{
			name: "one that is being deleted does not count", d: limited(2),
			sets: history(func(rs *appsv1.ReplicaSet) { rs.DeletionTimestamp = new(at(0)) }),
		},
		{
			name: "not while the rollout runs",
			d:    limited(0, func(d *appsv1.Deployment) { d.Generation = 2 }), sets: history(),
		},
		{
			name: "also while paused", d: limited(2, paused, func(d *appsv1.Deployment) { d.Generation = 2 }),
			sets: history(), want: map[string]int32{"v2": -1},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			out := Decide(Input{Now: now, Deployment: c.d, ReplicaSets: c.sets})
			if got := sizes(t, out.Writes); !maps.Equal(got, c.want) {
				t.Errorf("writes %v, want %v", got, c.want)
			}
		})
	}
}
