package controllers

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
	storagehelpers "k8s.io/component-helpers/storage/volume"
	"k8s.io/utils/ptr"

	"berth/control/localvolumes"
	"berth/control/volumes"
	nodevolumes "berth/internal/localvolumes"
)

const (
	// capacityInterval is how often the free space of a node is read.
	capacityInterval = time.Minute
	// unsupportedInterval is how often a node without the driver is asked again: its agent may have been updated.
	unsupportedInterval = 10 * time.Minute
	// pendingInterval is how often a volume that grows when it is next mounted is checked.
	pendingInterval = 30 * time.Second
	// quickRetries is how many requests for the volumes of a node are repeated with back-off. Then the node counts as
	// unreachable, which a node behind a firewall always is, and is asked at capacityInterval.
	quickRetries = 8
	// busyInterval is how often the deletion of a volume that a node still uses is repeated.
	busyInterval = 5 * time.Second
)

// provisionWorkers is how many nodes the provisioner calls at once. A node that does not respond delays only one.
const provisionWorkers = 8

// Errors of NodeVolumes.
var (
	ErrNoSpaceOnNode      = errors.New("not enough free space")
	ErrVolumeInUse        = errors.New("volume in use")
	ErrNoLocalVolumes     = errors.New("the node has no local volumes")
	ErrInvalidLocalVolume = errors.New("invalid volume")
	ErrLocalVolumeLost    = errors.New("volume not found on the node")
)

// NodeVolumes calls the endpoint /localvolumes of nodes. Errors wrap one of the errors above, or are those of the
// connection.
type NodeVolumes interface {
	List(ctx context.Context, node string) (nodevolumes.List, error)
	// Ensure creates a volume or grows it to that many bytes. Grow grows one that exists.
	Ensure(ctx context.Context, node, name string, bytes int64) (nodevolumes.Volume, error)
	Grow(ctx context.Context, node, name string, bytes int64) (nodevolumes.Volume, error)
	// Delete deletes a volume. It does nothing if the volume does not exist.
	Delete(ctx context.Context, node, name string) error
}

// localProvisioner creates, grows and deletes the volumes of the class local.
type localProvisioner struct {
	Config

	ctrl    *controller
	claims  cache.SharedIndexInformer
	volumes cache.SharedIndexInformer
	classes cache.SharedIndexInformer
	nodes   cache.SharedIndexInformer
	reports cache.SharedIndexInformer // CSIStorageCapacities

	mu sync.Mutex
	// creating has the volumes that are being created for claims: they have no PersistentVolume yet.
	creating map[string]bool
	// failures counts the failed requests for the volumes of a node since the last success.
	failures map[string]int
}

func newLocalProvisioner(c Config) ([]*controller, error) {
	if c.NodeVolumes == nil {
		return nil, nil
	}
	core, storage := c.Informers.Core().V1(), c.Informers.Storage().V1()
	p := &localProvisioner{
		Config: c, claims: core.PersistentVolumeClaims().Informer(), volumes: core.PersistentVolumes().Informer(),
		classes: storage.StorageClasses().Informer(), nodes: core.Nodes().Informer(),
		reports: storage.CSIStorageCapacities().Informer(), creating: map[string]bool{},
		failures: map[string]int{},
	}
	p.ctrl = c.newController(p.sync)
	p.ctrl.workers, p.ctrl.prepare = provisionWorkers, p.createObjects
	p.ctrl.waitFor(p.reports)
	for _, watch := range []struct {
		informer cache.SharedIndexInformer
		keys     func(obj any) []string
	}{
		{p.claims, p.keysOfClaim},
		{p.volumes, p.keysOfVolume},
		{p.classes, p.keysOfClass},
	} {
		if err := p.ctrl.watch(watch.informer, watch.keys); err != nil {
			return nil, err
		}
	}
	return []*controller{p.ctrl}, p.ctrl.addEventHandler(p.nodes, p.nodeHandler())
}

// keysOfClass returns all nodes: they publish their capacity for each class of the driver.
func (p *localProvisioner) keysOfClass(obj any) (out []string) {
	class, ok := obj.(*storagev1.StorageClass)
	if !ok || class.Provisioner != nodevolumes.DriverName {
		return nil
	}
	for _, name := range p.nodes.GetIndexer().ListKeys() {
		out = append(out, nodeKeyPrefix+name)
	}
	return out
}

// nodeHandler queues nodes that become ready: heartbeats do not matter.
func (p *localProvisioner) nodeHandler() cache.ResourceEventHandlerFuncs {
	enqueue := func(before, now *corev1.Node) {
		if nodeReady(now) && (before == nil || !nodeReady(before)) {
			p.ctrl.queue.Add(nodeKeyPrefix + now.Name)
		}
	}
	return cache.ResourceEventHandlerFuncs{
		AddFunc: func(obj any) {
			if n, ok := obj.(*corev1.Node); ok {
				enqueue(nil, n)
			}
		},
		UpdateFunc: func(old, obj any) {
			before, _ := old.(*corev1.Node)
			if n, ok := obj.(*corev1.Node); ok {
				enqueue(before, n)
			}
		},
	}
}

func nodeReady(n *corev1.Node) bool {
	ready := nodeCondition(n, corev1.NodeReady)
	return ready != nil && ready.Status == corev1.ConditionTrue
}

func (p *localProvisioner) keysOfClaim(obj any) []string {
	claim, ok := obj.(*corev1.PersistentVolumeClaim)
	if !ok || !localvolumes.NeedsVolume(claim) && claim.Spec.VolumeName == "" {
		return nil
	}
	return []string{claimKey(claim.Namespace, claim.Name)}
}

func (p *localProvisioner) keysOfVolume(obj any) []string {
	v, ok := obj.(*corev1.PersistentVolume)
	if !ok || !localvolumes.Provides(v) {
		return nil
	}
	out := []string{volumeKeyPrefix + v.Name}
	if ref := v.Spec.ClaimRef; ref != nil {
		out = append(out, claimKey(ref.Namespace, ref.Name))
	}
	return out
}

// createObjects creates the CSIDriver and the StorageClass if they do not exist. The class is the default unless there
// is another one.
func (p *localProvisioner) createObjects(ctx context.Context) error {
	storage := p.Client.StorageV1()
	_, err := storage.CSIDrivers().Create(ctx, localvolumes.Driver(), metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("create CSIDriver %s: %w", nodevolumes.DriverName, err)
	}
	classes, err := storage.StorageClasses().List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("list StorageClasses: %w", err)
	}
	var known []*storagev1.StorageClass
	for i := range classes.Items {
		if known = append(known, &classes.Items[i]); classes.Items[i].Name == localvolumes.ClassName {
			return nil
		}
	}
	class := localvolumes.Class(volumes.DefaultClass(known) == nil)
	if _, err := storage.StorageClasses().Create(ctx, class, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("create StorageClass %s: %w", class.Name, err)
	}
	return nil
}

func (p *localProvisioner) sync(ctx context.Context, key string) (time.Duration, error) {
	if name, ok := strings.CutPrefix(key, volumeKeyPrefix); ok {
		return p.syncVolume(ctx, name)
	}
	if name, ok := strings.CutPrefix(key, nodeKeyPrefix); ok {
		return p.syncNode(ctx, name)
	}
	obj, found, err := p.claims.GetIndexer().GetByKey(strings.TrimPrefix(key, claimKeyPrefix))
	claim, ok := obj.(*corev1.PersistentVolumeClaim)
	if err != nil || !found || !ok {
		return 0, err //nolint:wrapcheck // the index of the informer
	}
	if localvolumes.NeedsVolume(claim) {
		return 0, p.provision(ctx, claim)
	}
	return p.grow(ctx, claim)
}

func (p *localProvisioner) class(name string) *storagev1.StorageClass {
	obj, _, err := p.classes.GetIndexer().GetByKey(name)
	if class, ok := obj.(*storagev1.StorageClass); err == nil && ok {
		return class
	}
	return nil
}

func (p *localProvisioner) volume(name string) *corev1.PersistentVolume {
	obj, _, err := p.volumes.GetIndexer().GetByKey(name)
	if v, ok := obj.(*corev1.PersistentVolume); err == nil && ok {
		return v
	}
	return nil
}

// provision creates the volume of a claim.
func (p *localProvisioner) provision(ctx context.Context, claim *corev1.PersistentVolumeClaim) error {
	class := p.class(storagehelpers.GetPersistentVolumeClaimClass(claim))
	if class == nil || class.Provisioner != nodevolumes.DriverName || p.volume(localvolumes.VolumeName(claim)) != nil {
		return nil
	}
	r, ready, err := localvolumes.RequestFor(claim, class)
	if err != nil {
		p.Events.Eventf(claim, corev1.EventTypeWarning, "ProvisioningFailed", "failed to provision volume with "+
			"StorageClass %q: %v", class.Name, err)
		return nil // a claim cannot change these fields
	}
	if !ready {
		return nil
	}
	if r.Node == "" {
		if r.Node = p.roomiestNode(r.Bytes); r.Node == "" {
			p.Events.Eventf(claim, corev1.EventTypeWarning, "ProvisioningFailed", "failed to provision volume with "+
				"StorageClass %q: no node has %d bytes of free space for local volumes", class.Name, r.Bytes)
			return fmt.Errorf("claim %s/%s: no node has enough free space", claim.Namespace, claim.Name)
		}
	}
	p.Events.Eventf(claim, corev1.EventTypeNormal, "Provisioning", "External provisioner is provisioning volume for "+
		"claim %q", claim.Namespace+"/"+claim.Name)
	p.setCreating(r.Name, true)
	defer p.setCreating(r.Name, false)
	v, err := p.NodeVolumes.Ensure(ctx, r.Node, r.Name, r.Bytes)
	if err != nil {
		return p.provisionFailed(ctx, claim, class, r, err)
	}
	pv := localvolumes.Volume(claim, class, r.Node, v.CapacityBytes)
	_, err = p.Client.CoreV1().PersistentVolumes().Create(ctx, pv, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("create PersistentVolume %s: %w", pv.Name, err)
	}
	p.Events.Eventf(claim, corev1.EventTypeNormal, "ProvisioningSucceeded", "Successfully provisioned volume %s", pv.Name)
	p.ctrl.queue.Add(nodeKeyPrefix + r.Node) // its free space has changed
	return nil
}

func (p *localProvisioner) setCreating(name string, creating bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if creating {
		p.creating[name] = true
	} else {
		delete(p.creating, name)
	}
}

// provisionFailed reports a failure. A claim that waits for the consumer is scheduled again, because another node may
// have the space.
func (p *localProvisioner) provisionFailed(
	ctx context.Context, claim *corev1.PersistentVolumeClaim, class *storagev1.StorageClass, r localvolumes.Request,
	cause error,
) error {
	p.Events.Eventf(claim, corev1.EventTypeWarning, "ProvisioningFailed", "failed to provision volume with StorageClass "+
		"%q on node %s: %v", class.Name, r.Node, cause)
	if claim.Annotations[storagehelpers.AnnSelectedNode] == "" ||
		!errors.Is(cause, ErrNoSpaceOnNode) && !errors.Is(cause, ErrNoLocalVolumes) {
		return fmt.Errorf("create volume %s on node %s: %w", r.Name, r.Node, cause)
	}
	p.ctrl.queue.Add(nodeKeyPrefix + r.Node) // the published space was wrong
	out := claim.DeepCopy()
	delete(out.Annotations, storagehelpers.AnnSelectedNode)
	_, err := p.Client.CoreV1().PersistentVolumeClaims(claim.Namespace).Update(ctx, out, metav1.UpdateOptions{})
	if ignoreNotFound(err) != nil {
		return fmt.Errorf("schedule claim %s/%s again: %w", claim.Namespace, claim.Name, err)
	}
	return nil
}

// roomiestNode returns the ready node with most free space, or "" if none has that many bytes.
func (p *localProvisioner) roomiestNode(bytes int64) (node string) {
	for _, obj := range p.reports.GetIndexer().List() {
		c, ok := obj.(*storagev1.CSIStorageCapacity)
		if !ok || c.NodeTopology == nil || c.Capacity == nil || c.Labels[driverLabel] != nodevolumes.DriverName ||
			c.Capacity.Value() < bytes {
			continue
		}
		name := c.NodeTopology.MatchLabels[nodevolumes.TopologyKey]
		if n := p.node(name); n == nil || !nodeReady(n) || n.Spec.Unschedulable {
			continue
		}
		node, bytes = name, c.Capacity.Value()
	}
	return node
}

func (p *localProvisioner) node(name string) *corev1.Node {
	obj, _, err := p.nodes.GetIndexer().GetByKey(name)
	if n, ok := obj.(*corev1.Node); err == nil && ok {
		return n
	}
	return nil
}

// syncVolume deletes the volume of a released PersistentVolume.
func (p *localProvisioner) syncVolume(ctx context.Context, name string) (time.Duration, error) {
	v := p.volume(name)
	if v == nil || !localvolumes.Provides(v) {
		return 0, nil
	}
	next := localvolumes.NextReclaim(v)
	node := localvolumes.NodeOf(v)
	if next.DeleteVolume {
		if node == "" {
			return 0, fmt.Errorf("volume %s: no node in spec.nodeAffinity", name)
		}
		err := p.NodeVolumes.Delete(ctx, node, v.Spec.CSI.VolumeHandle)
		if errors.Is(err, ErrVolumeInUse) {
			return busyInterval, nil // the node has not unmounted it yet
		}
		if err != nil && p.node(node) == nil {
			p.Events.Eventf(v, corev1.EventTypeWarning, "VolumeFailedDelete", "node %s does not exist; if it does not return, "+
				"remove the finalizer %s", node, localvolumes.Finalizer)
			return unsupportedInterval, nil
		}
		if err != nil {
			p.Events.Eventf(v, corev1.EventTypeWarning, "VolumeFailedDelete", "failed to delete the volume on node %s: %v",
				node, err)
			return 0, fmt.Errorf("delete volume %s on node %s: %w", name, node, err)
		}
		p.ctrl.queue.Add(nodeKeyPrefix + node) // its free space has changed
	}
	api := p.Client.CoreV1().PersistentVolumes()
	if next.DeleteObject {
		err := api.Delete(ctx, name, metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(v.UID))})
		if ignoreNotFound(err) != nil {
			return 0, fmt.Errorf("delete PersistentVolume %s: %w", name, err)
		}
	}
	if !next.RemoveFinalizer {
		return 0, nil
	}
	now, err := api.Get(ctx, name, metav1.GetOptions{})
	if err != nil || now.UID != v.UID {
		return 0, ignoreNotFound(err)
	}
	now.Finalizers = slices.DeleteFunc(now.Finalizers, func(f string) bool { return f == localvolumes.Finalizer })
	if _, err = api.Update(ctx, now, metav1.UpdateOptions{}); ignoreNotFound(err) != nil {
		return 0, fmt.Errorf("remove finalizer of PersistentVolume %s: %w", name, err)
	}
	return 0, nil
}

// grow grows the volume of a claim.
func (p *localProvisioner) grow(ctx context.Context, claim *corev1.PersistentVolumeClaim) (time.Duration, error) {
	v := p.volume(claim.Spec.VolumeName)
	if v == nil || !localvolumes.Provides(v) {
		return 0, nil
	}
	growth, needed := localvolumes.GrowthOf(claim, v, p.class(v.Spec.StorageClassName))
	if !needed {
		return 0, nil
	}
	node := localvolumes.NodeOf(v)
	if growth.Volume {
		p.Events.Eventf(claim, corev1.EventTypeNormal, "Resizing", "External resizer is resizing volume %s", v.Name)
	}
	grown, err := p.NodeVolumes.Grow(ctx, node, v.Spec.CSI.VolumeHandle, growth.Bytes)
	if err != nil {
		p.Events.Eventf(claim, corev1.EventTypeWarning, "VolumeResizeFailed", "resize volume %q on node %s failed: %v",
			v.Name, node, err)
		return 0, fmt.Errorf("resize volume %s on node %s: %w", v.Name, node, err)
	}
	size := *resource.NewQuantity(grown.CapacityBytes, resource.BinarySI)
	if has := v.Spec.Capacity[corev1.ResourceStorage]; size.Cmp(has) > 0 {
		out := v.DeepCopy()
		out.Spec.Capacity[corev1.ResourceStorage] = size
		if _, err := p.Client.CoreV1().PersistentVolumes().Update(ctx, out, metav1.UpdateOptions{}); err != nil {
			return 0, fmt.Errorf("update capacity of PersistentVolume %s: %w", v.Name, err)
		}
		p.ctrl.queue.Add(nodeKeyPrefix + node) // its free space has changed
	}
	return p.reportGrowth(ctx, claim, v.Name, size, grown.Pending)
}

// reportGrowth updates the status of a claim whose volume has grown. pending: the file system grows later.
func (p *localProvisioner) reportGrowth(
	ctx context.Context, claim *corev1.PersistentVolumeClaim, volume string, size resource.Quantity, pending bool,
) (time.Duration, error) {
	out := claim.DeepCopy()
	reported := func(c corev1.PersistentVolumeClaimCondition) bool {
		return c.Type == corev1.PersistentVolumeClaimFileSystemResizePending
	}
	if pending && slices.ContainsFunc(out.Status.Conditions, reported) {
		return pendingInterval, nil
	}
	out.Status.Conditions = slices.DeleteFunc(out.Status.Conditions, reported)
	if pending {
		out.Status.Conditions = append(out.Status.Conditions, corev1.PersistentVolumeClaimCondition{
			Type: corev1.PersistentVolumeClaimFileSystemResizePending, Status: corev1.ConditionTrue,
			LastTransitionTime: metav1.Now(),
			Message:            "Waiting for the volume to be mounted again, to resize its file system.",
		})
	} else {
		out.Status.Capacity[corev1.ResourceStorage] = size
	}
	claims := p.Client.CoreV1().PersistentVolumeClaims(claim.Namespace)
	if _, err := claims.UpdateStatus(ctx, out, metav1.UpdateOptions{}); ignoreNotFound(err) != nil {
		return 0, fmt.Errorf("update status of claim %s/%s: %w", claim.Namespace, claim.Name, err)
	}
	if pending {
		p.Events.Event(claim, corev1.EventTypeNormal, "FileSystemResizeRequired", "Require file system resize of volume "+
			"on node")
		return pendingInterval, nil
	}
	p.Events.Eventf(claim, corev1.EventTypeNormal, "VolumeResizeSuccessful", "Resize volume succeeded: %s has %s", volume,
		ptr.To(size).String())
	return 0, nil
}
