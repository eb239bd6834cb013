package volumes

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	storagehelpers "k8s.io/component-helpers/storage/volume"

	"berth/workloads/workloadstest"
)

// world is an API server with claims and volumes, a watch cache that may be behind, a controller that may crash after
// every write, a scheduler, a provisioner and users.
type world struct {
	*testing.T

	rng     *rand.Rand
	version int
	claims  map[string]*corev1.PersistentVolumeClaim
	volumes map[string]*corev1.PersistentVolume
	classes map[string]*storagev1.StorageClass
	cached  fixedCache
	// owner is the UID of the claim that a volume was bound to in both directions, until a user removes the claimRef.
	owner map[types.UID]types.UID
	next  int
}

// fixedCache is the state of the watch cache.
type fixedCache struct {
	claims  map[string]*corev1.PersistentVolumeClaim
	volumes map[string]*corev1.PersistentVolume
}

func newWorld(t *testing.T, rng *rand.Rand) *world {
	w := &world{T: t, rng: rng, claims: map[string]*corev1.PersistentVolumeClaim{},
		volumes: map[string]*corev1.PersistentVolume{}, classes: map[string]*storagev1.StorageClass{},
		owner: map[types.UID]types.UID{}}
	for _, c := range []*storagev1.StorageClass{
		newClass("static", "", storagev1.VolumeBindingImmediate),
		newClass("local", "", storagev1.VolumeBindingWaitForFirstConsumer),
		newClass("csi", "csi.example.com", storagev1.VolumeBindingImmediate),
		newClass("later", "csi.example.com", storagev1.VolumeBindingWaitForFirstConsumer),
	} {
		w.classes[c.Name] = c
	}
	w.refresh()
	return w
}

// refresh brings the watch cache up to date.
func (w *world) refresh() { w.cached = fixedCache{maps.Clone(w.claims), maps.Clone(w.volumes)} }

// stamp gives an object a new resource version.
func (w *world) stamp(obj metav1.Object) {
	w.version++
	obj.SetResourceVersion(strconv.Itoa(w.version))
}

// write executes a write as the API server does. It reports false for a conflict.
func (w *world) write(write *Write) bool {
	if v := write.Volume; v != nil {
		stored, ok := w.volumes[v.Name]
		if !ok || stored.ResourceVersion != v.ResourceVersion || stored.UID != v.UID {
			return false
		}
		next := v.DeepCopy()
		if write.Status {
			next = stored.DeepCopy()
			next.Status = v.Status
		} else {
			next.Status = stored.Status
		}
		w.stamp(next)
		w.volumes[v.Name] = next
	} else {
		c := write.Claim
		stored, ok := w.claims[c.Name]
		if !ok || stored.ResourceVersion != c.ResourceVersion || stored.UID != c.UID {
			return false
		}
		next := c.DeepCopy()
		if write.Status {
			next = stored.DeepCopy()
			next.Status = c.Status
		} else {
			next.Status = stored.Status
			v := w.volumes[next.Spec.VolumeName]
			if metav1.HasAnnotation(next.ObjectMeta, storagehelpers.AnnBindCompleted) && v != nil &&
				v.Spec.ClaimRef != nil && v.Spec.ClaimRef.UID != next.UID && !w.replaced(v) {
				w.Fatalf("B1: claim %s is bound to volume %s of claim %s", c.Name, v.Name, v.Spec.ClaimRef.UID)
			}
		}
		w.stamp(next)
		w.claims[c.Name] = next
	}
	w.check()
	return true
}

// replaced reports whether a volume is not the one of this name in the cache.
func (w *world) replaced(v *corev1.PersistentVolume) bool {
	cached := w.cached.volumes[v.Name]
	return cached == nil || cached.UID != v.UID
}

// check verifies what must always be true.
func (w *world) check() {
	w.Helper()
	users := map[string]string{}
	for name, c := range w.claims {
		if c.Spec.VolumeName == "" || c.Status.Phase != corev1.ClaimBound {
			continue
		}
		v := w.volumes[c.Spec.VolumeName]
		if !IsFullyBound(c, v) {
			continue // its volume was deleted or released by a user
		}
		if other, used := users[v.Name]; used {
			w.Fatalf("B1: claims %s and %s are bound to volume %s", name, other, v.Name)
		}
		users[v.Name] = name
		if owner, owned := w.owner[v.UID]; owned && owner != c.UID {
			w.Fatalf("B3: volume %s of claim %s is bound to claim %s", v.Name, owner, c.UID)
		}
		w.owner[v.UID] = c.UID
	}
}

// worldView is the view of one sync: the cache, and what the sync has written.
type worldView struct {
	fixedView

	written map[string]*corev1.PersistentVolume
}

func (v worldView) Volume(name string) *corev1.PersistentVolume {
	if own := v.written[name]; own != nil {
		return own
	}
	return v.fixedView.Volume(name)
}

func (v worldView) Volumes() (out []*corev1.PersistentVolume) {
	for _, each := range v.fixedView.Volumes() {
		out = append(out, v.Volume(each.Name))
	}
	return out
}

// syncClaim runs the steps of a claim. It stops after the given number of writes, as a crash does. It returns the
// number of writes.
func (w *world) syncClaim(name string, crashAfter int) (writes int) {
	claim := w.cached.claims[name]
	view := worldView{fixedView{w.cached.volumes, w.classes, nil}, map[string]*corev1.PersistentVolume{}}
	for claim != nil && writes < crashAfter {
		step, err := NextForClaim(claim, view)
		if err != nil {
			w.Fatal(err)
		}
		if step.Write == nil || !w.write(step.Write) {
			return writes
		}
		writes++
		if v := step.Write.Volume; v != nil {
			view.written[v.Name] = w.volumes[v.Name]
		} else {
			claim = w.claims[name]
		}
		if writes > 10 {
			w.Fatalf("the sync of claim %s does not end", name)
		}
	}
	return writes
}

// syncVolume runs the steps of a volume.
func (w *world) syncVolume(name string, crashAfter int) (writes int) {
	v := w.cached.volumes[name]
	for v != nil && writes < crashAfter {
		var claim *corev1.PersistentVolumeClaim
		if ref := v.Spec.ClaimRef; ref != nil {
			if claim = w.cached.claims[ref.Name]; claim == nil || ref.UID != "" && claim.UID != ref.UID {
				claim = w.claims[ref.Name] // asks the API server
			}
			if claim != nil && ref.UID != "" && claim.UID != ref.UID {
				claim = nil
			}
		}
		step, _ := NextForVolume(v, claim)
		if step.Write == nil || !w.write(step.Write) {
			return writes
		}
		if writes++; writes > 10 {
			w.Fatalf("the sync of volume %s does not end", name)
		}
		v = w.volumes[name]
	}
	return writes
}

// pick returns a random key, or "".
func pick[V any](rng *rand.Rand, of map[string]V) string {
	keys := slices.Sorted(maps.Keys(of))
	if len(keys) == 0 {
		return ""
	}
	return keys[rng.IntN(len(keys))]
}

// userActs makes one random change.
func (w *world) userActs() {
	w.next++
	size := strconv.Itoa(1+w.rng.IntN(4)) + "Gi"
	class := []string{"static", "local", "csi", "later", ""}[w.rng.IntN(5)]
	switch w.rng.IntN(9) {
	case 0, 1, 2:
		claim := newClaim(fmt.Sprintf("c%d", w.rng.IntN(6)), class, size)
		if w.claims[claim.Name] != nil {
			return
		}
		claim.UID = types.UID(fmt.Sprintf("claim-%d", w.next))
		if w.rng.IntN(5) == 0 {
			claim.Spec.VolumeName = pick(w.rng, w.volumes)
		}
		w.stamp(claim)
		w.claims[claim.Name] = claim
	case 3, 4, 5:
		v := newVolume(fmt.Sprintf("v%d", w.rng.IntN(8)), class, size)
		if w.volumes[v.Name] != nil {
			return
		}
		v.UID, v.Status = types.UID(fmt.Sprintf("volume-%d", w.next)), corev1.PersistentVolumeStatus{}
		if w.rng.IntN(4) == 0 {
			boundTo(fmt.Sprintf("c%d", w.rng.IntN(6)), "")(v)
		}
		w.stamp(v)
		w.volumes[v.Name] = v
	case 6:
		delete(w.claims, pick(w.rng, w.claims))
	case 7:
		name := pick(w.rng, w.volumes)
		if v := w.volumes[name]; v != nil && v.Status.Phase != corev1.VolumeBound { // pv-protection
			delete(w.volumes, name)
		}
	default: // makes a released volume available
		v := w.volumes[pick(w.rng, w.volumes)]
		if v == nil || v.Status.Phase != corev1.VolumeReleased {
			return
		}
		out := v.DeepCopy()
		out.Spec.ClaimRef = nil
		delete(w.owner, v.UID)
		if !w.write(&Write{Volume: out}) {
			w.Fatal("conflict")
		}
	}
}

// schedulerActs provides for one claim that waits for its consumer.
func (w *world) schedulerActs() {
	claim := w.cached.claims[pick(w.rng, w.cached.claims)]
	if claim == nil || claim.Spec.VolumeName != "" ||
		!WaitsForConsumer(w.classes[storagehelpers.GetPersistentVolumeClaimClass(claim)]) {
		return
	}
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}
	got, why := MatchNode(PodClaims{Claims: []*corev1.PersistentVolumeClaim{claim}, Classes: w.classes,
		Volumes: slices.Collect(maps.Values(w.cached.volumes))}, node)
	if why != "" {
		return
	}
	for _, b := range got.Bind {
		if out, dirty, err := storagehelpers.GetBindVolumeToClaim(b.Volume, b.Claim); err == nil && dirty {
			w.write(&Write{Volume: out})
		}
	}
	for _, c := range got.Provision {
		out := c.DeepCopy()
		metav1.SetMetaDataAnnotation(&out.ObjectMeta, storagehelpers.AnnSelectedNode, node.Name)
		w.write(&Write{Claim: out})
	}
}

// provisionerActs creates the volume that a claim requests, and deletes released volumes.
func (w *world) provisionerActs() {
	for _, name := range slices.Sorted(maps.Keys(w.claims)) {
		c := w.claims[name]
		volume := "pvc-" + string(c.UID)
		if c.Annotations[storagehelpers.AnnStorageProvisioner] == "" || c.Spec.VolumeName != "" ||
			w.volumes[volume] != nil {
			continue
		}
		size := c.Spec.Resources.Requests[corev1.ResourceStorage]
		v := newVolume(volume, *c.Spec.StorageClassName, size.String(), boundTo(c.Name, string(c.UID)))
		v.Spec.PersistentVolumeReclaimPolicy = corev1.PersistentVolumeReclaimDelete
		metav1.SetMetaDataAnnotation(&v.ObjectMeta, storagehelpers.AnnDynamicallyProvisioned, "csi.example.com")
		v.Status = corev1.PersistentVolumeStatus{}
		w.stamp(v)
		w.volumes[volume] = v
	}
	for name, v := range w.volumes {
		if v.Annotations[storagehelpers.AnnDynamicallyProvisioned] != "" && v.Status.Phase == corev1.VolumeReleased {
			delete(w.volumes, name)
		}
	}
}

// settle runs everything without faults until nothing is written any more.
func (w *world) settle() {
	for range 100 {
		w.refresh()
		before := w.version
		w.provisionerActs()
		for _, name := range slices.Sorted(maps.Keys(w.claims)) {
			w.syncClaim(name, 20)
			w.refresh()
		}
		for _, name := range slices.Sorted(maps.Keys(w.volumes)) {
			w.syncVolume(name, 20)
			w.refresh()
		}
		if w.version == before {
			return
		}
	}
	w.Fatal("the world does not settle")
}

// checkSettled verifies what must be true when nothing is left to do.
func (w *world) checkSettled() {
	for name, c := range w.claims {
		v := w.volumes[c.Spec.VolumeName]
		switch c.Status.Phase {
		case corev1.ClaimBound:
			if !IsFullyBound(c, v) || v.Status.Phase != corev1.VolumeBound {
				w.Fatalf("B2: claim %s is bound, volume: %+v", name, v)
			}
		case corev1.ClaimPending:
			if v != nil && v.Spec.ClaimRef != nil && v.Spec.ClaimRef.UID == c.UID {
				w.Fatalf("B2: claim %s is pending, but volume %s is bound to it", name, v.Name)
			}
			delayed := WaitsForConsumer(w.classes[storagehelpers.GetPersistentVolumeClaimClass(c)])
			found, err := FindVolume(c, slices.Collect(maps.Values(w.volumes)), delayed)
			if c.Spec.VolumeName == "" && (found != nil || err != nil) {
				w.Fatalf("B6: claim %s is pending, volume %s matches", name, found.Name)
			}
		}
	}
	for name, v := range w.volumes {
		ref := v.Spec.ClaimRef
		switch {
		case ref == nil || ref.UID == "":
			if v.Status.Phase != corev1.VolumeAvailable {
				w.Fatalf("volume %s without a claim is %s", name, v.Status.Phase)
			}
		case w.claims[ref.Name] == nil || w.claims[ref.Name].UID != ref.UID:
			if v.Status.Phase != corev1.VolumeReleased {
				w.Fatalf("volume %s of a deleted claim is %s", name, v.Status.Phase)
			}
		case w.claims[ref.Name].Spec.VolumeName != name:
			w.Fatalf("B2: volume %s is bound to claim %s, which is bound to %q", name, ref.Name,
				w.claims[ref.Name].Spec.VolumeName)
		}
	}
}

// TestWorld runs the decisions in a world with a late watch cache and crashes.
func TestWorld(t *testing.T) {
	t.Parallel()
	bound := 0
	workloadstest.RunSeeds(t, 150, func(t *testing.T, rng *rand.Rand) {
		w := newWorld(t, rng)
		for range 3 {
			for range 60 {
				switch rng.IntN(8) {
				case 0, 1:
					w.userActs()
				case 2:
					w.schedulerActs()
				case 3:
					w.provisionerActs()
				case 4:
					w.syncVolume(pick(rng, w.cached.volumes), 1+rng.IntN(5))
				case 5, 6:
					w.syncClaim(pick(rng, w.cached.claims), 1+rng.IntN(5))
				case 7:
					w.refresh()
				}
				w.check()
			}
			w.settle()
			w.checkSettled()
			bound += len(w.owner)
		}
	})
	if bound == 0 {
		t.Error("no claim was bound with any seed")
	}
}
