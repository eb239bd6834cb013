package statefulset

import (
	"slices"

	corev1 "k8s.io/api/core/v1"

	"berth/workloads"
)

// createReplicas executes step 2. It reports whether the decision must end here.
func (d *decision) createReplicas() (done bool) {
	var groups replicaWrites
	for i := range d.replicas {
		first := len(d.writes)
		if wait := d.ensureReplica(&d.replicas[i]); d.ordered() {
			if wait {
				return true
			}
			continue
		}
		groups.add(d.writes[first:])
		d.writes = d.writes[:first]
	}
	for _, writes := range groups {
		d.writes = append(d.writes, writes...)
	}
	return false
}

// The groups of writes of the replicas of a parallel set, in their order. The executor applies the writes of a group
// concurrently. Pods whose claims exist come before the missing claims, so that a rejected claim does not prevent them.
const (
	claimUpdates = iota
	podDeletions
	podCreations
	podUpdates
	claimCreations
	claimedPodCreations
	claimedPodUpdates
	replicaGroups
)

type replicaWrites [replicaGroups][]workloads.Write

// add adds the writes of one replica: those of its claims, and then that of its pod.
func (g *replicaWrites) add(writes []workloads.Write) {
	claimsMissing := false
	for _, w := range writes {
		group := podUpdates
		switch _, isClaim := w.Object.(*corev1.PersistentVolumeClaim); {
		case isClaim && w.Verb == workloads.Create:
			group, claimsMissing = claimCreations, true
		case isClaim:
			group = claimUpdates
		case w.Verb == workloads.Delete:
			group = podDeletions
		case w.Verb == workloads.Create && claimsMissing:
			group = claimedPodCreations
		case w.Verb == workloads.Create:
			group = podCreations
		case claimsMissing:
			group = claimedPodUpdates
		}
		g[group] = append(g[group], w)
	}
}

// ensureReplica reports whether an ordered set has to wait for the replica.
func (d *decision) ensureReplica(r *replica) (wait bool) {
	switch {
	case r.pod == nil:
		d.create(r)
		return true
	case workloads.Terminated(r.pod):
		// The exit code does not show why a pod has ended, so a succeeded pod is replaced too.
		if r.pod.DeletionTimestamp == nil {
			d.delete(r.pod)
		}
		return true
	}
	if r.pod.Status.Phase == corev1.PodPending {
		if err := d.createClaims(r.ordinal, r.pod.Name); err != nil {
			d.failed("create", r.pod.Name, err)
			return true
		}
	}
	if d.ordered() && d.unavailable(r.pod) {
		if d.replacesBroken(r) {
			d.deleteForUpdate(r)
		}
		return true
	}
	d.repair(r)
	return false
}

// create plans the claims and the pod of a missing replica.
func (d *decision) create(r *replica) {
	if d.staleClaim(r) {
		d.wake = workloads.Earlier(d.wake, d.Now.Add(claimRetry))
		return
	}
	pod := newPod(d.Set, r)
	if err := d.createClaims(r.ordinal, pod.Name); err != nil {
		d.failed("create", pod.Name, err)
		return
	}
	d.adjustClaims(r.ordinal, pod, true)
	d.write(workloads.Create, pod)
}

// repair restores the identity and the claims of an available pod.
func (d *decision) repair(r *replica) {
	fixed := withIdentity(r.pod, r.ordinal)
	if !hasClaims(d.Set, r.pod, r.ordinal) {
		if err := d.createClaims(r.ordinal, r.pod.Name); err != nil {
			d.failed("update", r.pod.Name, err)
			return
		}
		if fixed == nil {
			fixed = r.pod.DeepCopy()
		}
		setClaims(d.Set, fixed, r.ordinal)
	}
	d.adjustClaims(r.ordinal, r.pod, true)
	if fixed != nil {
		d.write(workloads.Update, fixed)
	}
}

// deleteExcess executes step 3. It reports whether the decision must end here.
func (d *decision) deleteExcess() (done bool) {
	first := d.firstUnavailable()
	for _, r := range d.excess {
		switch {
		case r.pod.DeletionTimestamp != nil:
			if d.ordered() {
				return true
			}
		case !d.ordered():
			d.delete(r.pod)
		case !d.available(r.pod) && r.pod != first && !workloads.Terminated(r.pod):
			// A terminated pod never becomes available. Upstream waits for it forever if a second one is unavailable.
			return true
		default:
			d.delete(r.pod)
			return true
		}
	}
	return false
}

// firstUnavailable returns the unavailable pod of the lowest desired ordinal, or else of the lowest other ordinal.
func (d *decision) firstUnavailable() *corev1.Pod {
	for _, r := range d.replicas {
		if r.pod == nil || d.unavailable(r.pod) {
			return r.pod
		}
	}
	for _, r := range slices.Backward(d.excess) {
		if d.unavailable(r.pod) {
			return r.pod
		}
	}
	return nil
}
