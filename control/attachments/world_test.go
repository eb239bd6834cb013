package attachments

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// world is a model of an API server, nodes, a driver and a controller whose watches are late. It checks the invariants
// of the package after each step.
type world struct {
	*rand.Rand

	t      *testing.T
	now    time.Time
	log    []string
	volume *corev1.PersistentVolume

	pods        map[string]*corev1.Pod
	nodes       map[string]*corev1.Node
	attachments map[string]*storagev1.VolumeAttachment

	attached map[string]bool // by node: what the driver has done
	mounted  map[string]bool // by node
	agents   map[string]*corev1.Node

	// The state of the controller.
	seen    state
	unused  map[string]time.Time
	deleted map[types.UID]bool
	created map[string]*storagev1.VolumeAttachment
	written map[string]*corev1.Node
	version int
}

// state is the state of the watch caches.
type state struct {
	pods        map[string]*corev1.Pod
	nodes       map[string]*corev1.Node
	attachments map[string]*storagev1.VolumeAttachment
}

const (
	testDriver = "driver.example.com"
	testHandle = "handle^1"
)

func newWorld(t *testing.T, seed uint64) *world {
	t.Helper()
	w := &world{Rand: rand.New(rand.NewPCG(seed, 1)), t: t, now: time.Unix(1_000_000, 0),
		pods: map[string]*corev1.Pod{}, nodes: map[string]*corev1.Node{},
		attachments: map[string]*storagev1.VolumeAttachment{},
		attached:    map[string]bool{}, mounted: map[string]bool{}, agents: map[string]*corev1.Node{},
		volume: &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv"}}}
	w.volume.Spec.CSI = &corev1.CSIPersistentVolumeSource{Driver: testDriver, VolumeHandle: testHandle}
	w.volume.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}
	if w.IntN(4) == 0 {
		w.volume.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteMany}
	}
	for i := range 3 {
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("n", i),
			Annotations: map[string]string{ManagedAnnotation: "true"}}}
		n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
		w.store(n)
	}
	w.restart()
	return w
}

func (w *world) fail(format string, args ...any) {
	w.t.Helper()
	for _, line := range w.log {
		w.t.Log(line)
	}
	w.t.Fatalf(format, args...)
}

func (w *world) note(format string, args ...any) {
	w.log = append(w.log, w.now.Format("04:05 ")+fmt.Sprintf(format, args...))
}

// store writes a Node.
func (w *world) store(n *corev1.Node) *corev1.Node {
	w.version++
	n = n.DeepCopy()
	n.ResourceVersion = fmt.Sprint(w.version)
	w.nodes[n.Name] = n
	return n
}

// restart is a controller that starts: it has no memory and lists everything.
func (w *world) restart() {
	w.unused, w.deleted = map[string]time.Time{}, map[types.UID]bool{}
	w.created, w.written = map[string]*storagev1.VolumeAttachment{}, map[string]*corev1.Node{}
	w.seen = state{maps.Clone(w.pods), maps.Clone(w.nodes), maps.Clone(w.attachments)}
}

// list returns the attachments of the watch cache, and those that the controller has created since.
func (w *world) list() (out []Attachment) {
	all := maps.Clone(w.seen.attachments)
	for name, a := range w.created {
		if all[name] != nil || w.attachments[name] == nil {
			delete(w.created, name) // in the watch cache, or deleted
			continue
		}
		all[name] = a
	}
	for _, name := range slices.Sorted(maps.Keys(all)) {
		out = append(out, Attachment{all[name], testHandle, w.deleted[all[name].UID]})
	}
	return out
}

func (w *world) node(name string) *corev1.Node {
	n, own := w.seen.nodes[name], w.written[name]
	if n != nil && own != nil {
		var a, b int
		_, _ = fmt.Sscan(n.ResourceVersion, &a)
		_, _ = fmt.Sscan(own.ResourceVersion, &b)
		if b > a {
			return own
		}
	}
	return n
}

func (w *world) view() View {
	v := View{Now: w.now, Volume: w.volume, Required: true, Attachments: w.list(), Unused: w.unused,
		Nodes: map[string]*corev1.Node{}}
	for name := range w.seen.nodes {
		v.Nodes[name] = w.node(name)
	}
	for _, name := range slices.Sorted(maps.Keys(w.seen.pods)) {
		v.Pods = append(v.Pods, w.seen.pods[name])
	}
	return v
}

// syncVolume is the controller with the volume. It may be killed between two writes.
func (w *world) syncVolume() {
	v := w.view()
	d := Decide(v)
	w.unused = d.Unused
	for _, del := range d.Delete {
		a := w.attachments[del.Name]
		if a == nil || string(a.UID) != del.UID {
			continue
		}
		n := w.nodes[a.Spec.NodeName]
		if del.Forced == "" && n != nil && reported(n, a) {
			w.fail("A3: %s is deleted while node %s may mount the volume: in use %v, attached %v", del.Name, n.Name,
				n.Status.VolumesInUse, n.Status.VolumesAttached)
		}
		w.note("controller deletes the attachment of %s (%s)", a.Spec.NodeName, del.Forced)
		a = a.DeepCopy()
		a.DeletionTimestamp = &metav1.Time{Time: w.now}
		w.attachments[del.Name] = a
		w.deleted[a.UID] = true
	}
	if a := d.Create; a != nil {
		if w.attachments[a.Name] != nil {
			return // already exists
		}
		w.version++
		a.UID = types.UID(fmt.Sprint(w.version))
		w.note("controller attaches to %s", a.Spec.NodeName)
		w.attachments[a.Name], w.created[a.Name] = a, a
		if exclusive := !slices.Contains(w.volume.Spec.AccessModes, corev1.ReadWriteMany); exclusive &&
			len(w.attachments) > 1 {
			w.fail("A1: %d attachments", len(w.attachments))
		}
	}
}

// syncNode is the controller with a node.
func (w *world) syncNode(name string) {
	n := w.node(name)
	if n == nil {
		return
	}
	v := w.view()
	users := v.users()
	mine := slices.DeleteFunc(v.Attachments, func(a Attachment) bool { return a.Spec.NodeName != name })
	list, changed := Reported(w.now, n, mine, func(a *storagev1.VolumeAttachment) (bool, time.Time) {
		since, known := w.unused[a.Name]
		if !known {
			since = w.now
		}
		return len(users[a.Spec.NodeName]) > 0, since
	})
	if !changed || w.nodes[name].ResourceVersion != n.ResourceVersion {
		return // a conflict
	}
	n = n.DeepCopy()
	n.Status.VolumesAttached = list
	w.note("controller reports %d volumes of %s", len(list), name)
	w.written[name] = w.store(n)
}

// agent is a step of a node's agent, which reads its Node from the API server. It mounts a volume after it has
// written volumesInUse.
func (w *world) agent(name string) {
	n := w.nodes[name]
	if n == nil {
		return
	}
	volume := VolumeName(testDriver, testHandle)
	a := w.attachments[Name(testDriver, testHandle, name)]
	wanted := false
	for _, p := range w.pods {
		wanted = wanted || p.Spec.NodeName == name && p.DeletionTimestamp == nil
	}
	used := slices.Contains(n.Status.VolumesInUse, volume)
	attached := slices.ContainsFunc(n.Status.VolumesAttached, func(v corev1.AttachedVolume) bool {
		return v.Name == volume
	})
	switch {
	case wanted && !used:
		n = n.DeepCopy()
		n.Status.VolumesInUse = []corev1.UniqueVolumeName{volume}
		w.store(n)
	case wanted && !w.mounted[name] && attached && a != nil && a.Status.Attached && a.DeletionTimestamp == nil:
		if !w.attached[name] {
			w.fail("the volume is reported as attached to %s and is not", name)
		}
		w.note("%s mounts", name)
		w.mounted[name] = true
	case !wanted && w.mounted[name]:
		w.note("%s unmounts", name)
		delete(w.mounted, name)
	case !wanted && used:
		n = n.DeepCopy()
		n.Status.VolumesInUse = nil
		w.store(n)
	}
	for key, p := range w.pods { // an ended pod is removed after its volumes
		if p.Spec.NodeName == name && p.DeletionTimestamp != nil && !w.mounted[name] {
			delete(w.pods, key)
		}
	}
}

// driver is a step of the driver.
func (w *world) driver() {
	for _, name := range slices.Sorted(maps.Keys(w.attachments)) {
		a := w.attachments[name]
		node := a.Spec.NodeName
		switch {
		case a.DeletionTimestamp != nil:
			if w.mounted[node] && w.nodes[node] != nil && ready(w.nodes[node]) {
				w.fail("A2: the driver detaches a mounted volume from %s", node)
			}
			delete(w.attached, node)
			delete(w.attachments, name)
			w.note("driver has detached from %s", node)
		case !a.Status.Attached:
			a = a.DeepCopy()
			a.Status.Attached = true
			w.attached[node] = true
			w.attachments[name] = a
			w.note("driver has attached to %s", node)
		}
	}
}

// user creates and deletes pods, and nodes stop and come back.
func (w *world) user() {
	name := fmt.Sprint("p", w.IntN(4))
	p := w.pods[name]
	switch {
	case p == nil:
		w.version++
		p = &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name,
			UID: types.UID(fmt.Sprint(w.version)), CreationTimestamp: metav1.Time{Time: w.now}},
			Spec: corev1.PodSpec{NodeName: fmt.Sprint("n", w.IntN(3))}}
		w.pods[name] = p
		w.note("pod %s on %s", name, p.Spec.NodeName)
	case p.DeletionTimestamp == nil:
		p = p.DeepCopy()
		p.DeletionTimestamp = &metav1.Time{Time: w.now}
		w.pods[name] = p
		w.note("pod %s is deleted", name)
	}
}

// updateCache updates the watch cache of one kind.
func (w *world) updateCache() {
	switch w.IntN(3) {
	case 0:
		w.seen.pods = maps.Clone(w.pods)
	case 1:
		w.seen.nodes = maps.Clone(w.nodes)
	default:
		w.seen.attachments = maps.Clone(w.attachments)
	}
}

func (w *world) step() {
	w.now = w.now.Add(time.Duration(w.IntN(5)) * time.Second)
	switch n := w.IntN(100); {
	case n < 12:
		w.user()
	case n < 30:
		w.agent(fmt.Sprint("n", w.IntN(3)))
	case n < 42:
		w.driver()
	case n < 60:
		w.updateCache()
	case n < 80:
		w.syncVolume()
	case n < 97:
		w.syncNode(fmt.Sprint("n", w.IntN(3)))
	default:
		w.note("controller restarts")
		w.restart()
	}
}

// settle runs everything until nothing changes, and checks A4 and A5.
func (w *world) settle() {
	for range 40 {
		w.seen = state{maps.Clone(w.pods), maps.Clone(w.nodes), maps.Clone(w.attachments)}
		w.syncVolume()
		for i := range 3 {
			w.syncNode(fmt.Sprint("n", i))
			w.seen.nodes = maps.Clone(w.nodes)
			w.agent(fmt.Sprint("n", i))
		}
		w.driver()
	}
	users := map[string]bool{}
	for _, p := range w.pods {
		users[p.Spec.NodeName] = true
	}
	exclusive := !slices.Contains(w.volume.Spec.AccessModes, corev1.ReadWriteMany)
	if got := len(w.mounted); len(users) > 0 && (exclusive && got != 1 || !exclusive && got != len(users)) {
		w.fail("A4: the volume is mounted on %d nodes, pods are on %d", got, len(users))
	}
	for node := range w.attached {
		if !users[node] {
			w.fail("A5: the volume is attached to %s, which has no pod", node)
		}
	}
}

func TestAttachmentsInModelWorld(t *testing.T) {
	t.Parallel()
	seeds := 1500
	if testing.Short() {
		seeds = 200
	}
	for seed := range seeds {
		w := newWorld(t, uint64(seed))
		for range 120 {
			w.step()
		}
		w.settle()
	}
}
