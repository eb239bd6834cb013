package controllers

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"berth/control/localvolumes"
	nodevolumes "berth/internal/localvolumes"
)

// Labels of CSIStorageCapacities.
const (
	driverLabel          = "csi.storage.k8s.io/drivername"
	capacityManagerLabel = "csi.storage.k8s.io/managed-by"
)

// syncNode publishes the free space of a node, and deletes volumes there that were created for nothing.
func (p *localProvisioner) syncNode(ctx context.Context, name string) (time.Duration, error) {
	obj, found, err := p.nodes.GetIndexer().GetByKey(name)
	node, ok := obj.(*corev1.Node)
	if err != nil || !found || !ok || !nodeReady(node) {
		_ = p.countFailure(name, nil) // it starts again when the node is ready
		return 0, err                 //nolint:wrapcheck // the index of the informer
	}
	list, err := p.NodeVolumes.List(ctx, name)
	failures := p.countFailure(name, err)
	switch {
	case errors.Is(err, ErrNoLocalVolumes):
		return unsupportedInterval, p.publishCapacity(ctx, node, 0, false)
	case failures > quickRetries:
		return capacityInterval, nil
	case failures == quickRetries:
		p.Log.Warn("local volumes of the node unreachable; retrying", "node", name, "retryIn", capacityInterval, "err", err)
		return capacityInterval, nil
	case err != nil:
		return 0, fmt.Errorf("list volumes of node %s: %w", name, err)
	}
	p.deleteUnreferenced(ctx, name, list.Volumes)
	return capacityInterval, p.publishCapacity(ctx, node, list.AvailableBytes, true)
}

// countFailure returns how many requests for the volumes of a node have failed since the last success. That a node has
// no local volumes is a success.
func (p *localProvisioner) countFailure(node string, err error) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err == nil || errors.Is(err, ErrNoLocalVolumes) {
		delete(p.failures, node)
		return 0
	}
	p.failures[node]++
	return p.failures[node]
}

// deleteUnreferenced deletes the volumes of a node that were created for a claim that is gone.
func (p *localProvisioner) deleteUnreferenced(ctx context.Context, node string, list []nodevolumes.Volume) {
	known := map[string]bool{}
	for _, obj := range p.volumes.GetIndexer().List() {
		if v, ok := obj.(*corev1.PersistentVolume); ok && localvolumes.Provides(v) && localvolumes.NodeOf(v) == node {
			known[v.Spec.CSI.VolumeHandle] = true
		}
	}
	for _, obj := range p.claims.GetIndexer().List() {
		if c, ok := obj.(*corev1.PersistentVolumeClaim); ok && c.Spec.VolumeName == "" { // it may get the volume yet
			known[localvolumes.VolumeName(c)] = true
		}
	}
	p.mu.Lock()
	for name := range p.creating {
		known[name] = true
	}
	p.mu.Unlock()
	for _, v := range list {
		if !localvolumes.Unreferenced(v, known) {
			continue
		}
		if err := p.NodeVolumes.Delete(ctx, node, v.Name); err != nil {
			p.Log.Warn("unused local volume not deleted", "node", node, "volumeName", v.Name, "err", err)
			continue
		}
		p.Log.Info("unused local volume deleted", "node", node, "volumeName", v.Name)
	}
}

// publishCapacity keeps the CSIStorageCapacity of each class of the driver for a node. supported: the node has the driver.
func (p *localProvisioner) publishCapacity(ctx context.Context, node *corev1.Node, bytes int64, supported bool) error {
	var errs []error
	for _, obj := range p.classes.GetIndexer().List() {
		if class, ok := obj.(*storagev1.StorageClass); ok && class.Provisioner == nodevolumes.DriverName {
			errs = append(errs, p.publishClassCapacity(ctx, node, class.Name, bytes, supported))
		}
	}
	return errors.Join(errs...)
}

func (p *localProvisioner) publishClassCapacity(
	ctx context.Context, node *corev1.Node, class string, bytes int64, supported bool,
) error {
	name := capacityName(class, node)
	capacities := p.Client.StorageV1().CSIStorageCapacities(metav1.NamespaceSystem)
	obj, found, err := p.reports.GetIndexer().GetByKey(metav1.NamespaceSystem + "/" + name)
	if err != nil {
		return err //nolint:wrapcheck // the index of the informer
	}
	has, ok := obj.(*storagev1.CSIStorageCapacity)
	size := resource.NewQuantity(bytes, resource.BinarySI)
	switch {
	case !supported && found:
		err = ignoreNotFound(capacities.Delete(ctx, name, metav1.DeleteOptions{}))
	case !supported:
	case !found:
		_, err = capacities.Create(ctx, &storagev1.CSIStorageCapacity{
			ObjectMeta: metav1.ObjectMeta{
				Name: name, Namespace: metav1.NamespaceSystem,
				Labels: map[string]string{
					driverLabel: nodevolumes.DriverName, capacityManagerLabel: LocalVolumeProvisioner,
				},
				OwnerReferences: []metav1.OwnerReference{{
					APIVersion: "v1", Kind: "Node", Name: node.Name, UID: node.UID,
				}},
			},
			StorageClassName: class, Capacity: size, MaximumVolumeSize: size,
			NodeTopology: &metav1.LabelSelector{MatchLabels: map[string]string{nodevolumes.TopologyKey: node.Name}},
		}, metav1.CreateOptions{})
		if apierrors.IsAlreadyExists(err) {
			return nil // the informer gets it soon
		}
	case ok && (has.Capacity == nil || localvolumes.CapacityChanged(has.Capacity.Value(), bytes)):
		out := has.DeepCopy()
		out.Capacity, out.MaximumVolumeSize = size, size
		_, err = capacities.Update(ctx, out, metav1.UpdateOptions{})
	}
	if err != nil {
		return fmt.Errorf("publish storage capacity of node %s: %w", node.Name, err)
	}
	return nil
}

// capacityName returns the name of the CSIStorageCapacity of a node. The UID distinguishes a node from an earlier one whose
// objects the garbage collector has not deleted yet.
func capacityName(class string, node *corev1.Node) string {
	const longest = 253
	name := fmt.Sprintf("%s.%s.%s", class, node.UID, node.Name)
	return strings.TrimRight(name[:min(len(name), longest)], ".-")
}

// nodeVolumes is NodeVolumes by the API server, which forwards requests to the nodes.
type nodeVolumes struct{ client rest.Interface }

// NewNodeVolumes returns a NodeVolumes that uses the subresource nodes/proxy.
func NewNodeVolumes(client kubernetes.Interface) NodeVolumes {
	return nodeVolumes{client.CoreV1().RESTClient()}
}

// nodeTimeout limits one request to a node. Making the file system of a large volume takes seconds.
const nodeTimeout = 2 * time.Minute

func (n nodeVolumes) List(ctx context.Context, node string) (out nodevolumes.List, err error) {
	err = n.do(ctx, n.client.Get(), node, "", nil, &out)
	if err == nil && out.Driver != nodevolumes.DriverName { // a node agent that responds to any path
		err = fmt.Errorf("%w: the response is not that of driver %s", ErrNoLocalVolumes, nodevolumes.DriverName)
	}
	return out, err
}

func (n nodeVolumes) Ensure(
	ctx context.Context, node, name string, bytes int64,
) (out nodevolumes.Volume, err error) {
	return out, n.do(ctx, n.client.Put(), node, name, nodevolumes.Request{CapacityBytes: bytes}, &out)
}

func (n nodeVolumes) Grow(
	ctx context.Context, node, name string, bytes int64,
) (out nodevolumes.Volume, err error) {
	return out, n.do(ctx, n.client.Put(), node, name, nodevolumes.Request{CapacityBytes: bytes, Grow: true}, &out)
}

func (n nodeVolumes) Delete(ctx context.Context, node, name string) error {
	var out struct{}
	return n.do(ctx, n.client.Delete(), node, name, nil, &out)
}

func (n nodeVolumes) do(ctx context.Context, r *rest.Request, node, name string, body, out any) error {
	ctx, cancel := context.WithTimeout(ctx, nodeTimeout)
	defer cancel()
	path := []string{strings.TrimPrefix(nodevolumes.Path, "/")}
	if name != "" {
		path = append(path, name)
	}
	r = r.Resource("nodes").Name(node).SubResource("proxy").Suffix(path...).MaxRetries(0).
		SetHeader("Accept", "application/json")
	if body != nil {
		data, err := json.Marshal(body)
		if err != nil {
			return err
		}
		r = r.Body(data).SetHeader("Content-Type", "application/json")
	}
	result := r.Do(ctx)
	data, err := result.Raw()
	if err == nil {
		return json.Unmarshal(data, out)
	}
	failure, ok := errors.AsType[*apierrors.StatusError](result.Error())
	if !ok {
		return err
	}
	// The text of the node or of the API server says more than the message that the client makes of it.
	text := failure.ErrStatus.Message
	if details := failure.ErrStatus.Details; details != nil {
		for _, c := range details.Causes {
			if c.Type == metav1.CauseTypeUnexpectedServerResponse {
				text = strings.TrimSpace(c.Message)
			}
		}
	}
	switch failure.ErrStatus.Code {
	case http.StatusInsufficientStorage:
		return fmt.Errorf("%w: %s", ErrNoSpaceOnNode, text)
	case http.StatusConflict:
		return fmt.Errorf("%w: %s", ErrVolumeInUse, text)
	case http.StatusGone:
		return fmt.Errorf("%w: %s", ErrLocalVolumeLost, text)
	case http.StatusBadRequest:
		return fmt.Errorf("%w: %s", ErrInvalidLocalVolume, text)
	case http.StatusNotImplemented, http.StatusNotFound, http.StatusMethodNotAllowed:
		return fmt.Errorf("%w: %s", ErrNoLocalVolumes, text)
	}
	return errors.New(text)
}
