package authz

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
)

const (
	byNode   = "berth.dev/node-refs"   // of pods, by node and referenced object
	bySecret = "berth.dev/secret-refs" //nolint:gosec // the name of an index, of volumes: secrets that mounting needs
)

// Ref identifies an object that a pod may refer to, by the plural name of the resource. Namespace
// is "" for cluster-scoped resources.
type Ref struct{ Resource, Namespace, Name string }

// Graph answers which objects the pods of a node refer to. It stores no objects: it consists of
// indexes of the shared informers.
type Graph struct {
	pods    cache.Indexer
	volumes cache.Indexer
	client  kubernetes.Interface
}

// NewGraph adds its indexes to the factory's informers, which must not be running yet. The client
// is used for lookups that the indexes cannot answer yet, because a node may observe its pod before
// this server's cache does. It may be nil.
func NewGraph(f informers.SharedInformerFactory, client kubernetes.Interface) (*Graph, error) {
	pods, volumes := f.Core().V1().Pods().Informer(), f.Core().V1().PersistentVolumes().Informer()
	if err := pods.AddIndexers(cache.Indexers{byNode: podKeys}); err != nil {
		return nil, fmt.Errorf("index pods by node: %w", err)
	}
	if err := volumes.AddIndexers(cache.Indexers{bySecret: volumeKeys}); err != nil {
		return nil, fmt.Errorf("index volumes by secret: %w", err)
	}
	return &Graph{pods.GetIndexer(), volumes.GetIndexer(), client}, nil
}

// References reports whether a pod bound to the node refers to the object or is the object.
func (g *Graph) References(ctx context.Context, node string, r Ref) bool {
	switch r.Resource {
	case "persistentvolumes":
		return g.volumeReferenced(ctx, node, r.Name)
	case "secrets":
		return g.referencedByPod(ctx, node, r, g.claimsOf(r))
	}
	return g.referencedByPod(ctx, node, r, nil)
}

// volumeReferenced checks the claim that the volume is bound to.
func (g *Graph) volumeReferenced(ctx context.Context, node, name string) bool {
	obj, found, err := g.volumes.GetByKey(name)
	if err != nil || !found {
		return false
	}
	v, ok := obj.(*corev1.PersistentVolume)
	if !ok || v.Spec.ClaimRef == nil {
		return false
	}
	return g.referencedByPod(ctx, node, Ref{"persistentvolumeclaims", v.Spec.ClaimRef.Namespace, v.Spec.ClaimRef.Name},
		nil)
}

// claimsOf returns the claims whose volumes need the secret to be mounted.
func (g *Graph) claimsOf(secret Ref) (out []Ref) {
	objs, err := g.volumes.ByIndex(bySecret, secret.Namespace+"/"+secret.Name)
	if err != nil {
		return nil
	}
	for _, o := range objs {
		if v, ok := o.(*corev1.PersistentVolume); ok && v.Spec.ClaimRef != nil {
			out = append(out, Ref{"persistentvolumeclaims", v.Spec.ClaimRef.Namespace, v.Spec.ClaimRef.Name})
		}
	}
	return out
}

// ownsSlice reports whether the ResourceSlice belongs to the node. It reads from the API server,
// because an index for these rare requests is not worth its memory.
func (g *Graph) ownsSlice(ctx context.Context, node, slice string) bool {
	if g.client == nil {
		return false
	}
	s, err := g.client.ResourceV1().ResourceSlices().Get(ctx, slice, metav1.GetOptions{})
	return err == nil && s.Spec.NodeName != nil && *s.Spec.NodeName == node // invariant Z1
}

// ownsAttachment reports whether the VolumeAttachment is for the node. It reads from the API server, for
// the same reason as ownsSlice.
func (g *Graph) ownsAttachment(ctx context.Context, node, name string) bool {
	if g.client == nil {
		return false
	}
	a, err := g.client.StorageV1().VolumeAttachments().Get(ctx, name, metav1.GetOptions{})
	return err == nil && a.Spec.NodeName == node // invariant Z1
}

func (g *Graph) referencedByPod(ctx context.Context, node string, r Ref, or []Ref) bool {
	wanted := map[string]bool{}
	for _, one := range append(or, r) {
		key := keyOf(node, one)
		if objs, err := g.pods.IndexKeys(byNode, key); err == nil && len(objs) > 0 {
			return true
		}
		wanted[key] = true
	}
	if g.client == nil {
		return false
	}
	list, err := g.client.CoreV1().Pods(r.Namespace).List(ctx,
		metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("spec.nodeName", node).String()})
	if err != nil {
		return false // invariant Z1
	}
	for i := range list.Items {
		keys, _ := podKeys(&list.Items[i])
		for _, key := range keys {
			if wanted[key] {
				return true
			}
		}
	}
	return false
}

func keyOf(node string, r Ref) string {
	return node + "\x00" + r.Resource + "\x00" + r.Namespace + "\x00" + r.Name
}

// podKeys returns the index keys of a bound pod. The references of mirror pods are ignored, because
// nodes create mirror pods themselves.
func podKeys(obj any) ([]string, error) {
	pod, ok := obj.(*corev1.Pod)
	if !ok || pod.Spec.NodeName == "" {
		return nil, nil
	}
	keys := []string{keyOf(pod.Spec.NodeName, Ref{"pods", pod.Namespace, pod.Name})}
	if pod.Annotations[corev1.MirrorPodAnnotationKey] != "" {
		return keys, nil
	}
	seen := map[string]bool{}
	VisitRefs(pod, func(resource, name string) {
		key := keyOf(pod.Spec.NodeName, Ref{resource, pod.Namespace, name})
		if name != "" && !seen[key] {
			seen[key] = true
			keys = append(keys, key)
		}
	})
	return keys, nil
}

func volumeKeys(obj any) (keys []string, _ error) {
	v, ok := obj.(*corev1.PersistentVolume)
	if !ok {
		return nil, nil
	}
	add := func(r *corev1.SecretReference) {
		if r == nil || r.Name == "" {
			return
		}
		namespace := r.Namespace
		if namespace == "" && v.Spec.ClaimRef != nil {
			namespace = v.Spec.ClaimRef.Namespace
		}
		keys = append(keys, namespace+"/"+r.Name)
	}
	s := &v.Spec.PersistentVolumeSource
	if s.CSI != nil {
		add(s.CSI.NodePublishSecretRef)
		add(s.CSI.NodeStageSecretRef)
		add(s.CSI.NodeExpandSecretRef)
	}
	if s.ISCSI != nil {
		add(s.ISCSI.SecretRef)
	}
	if s.AzureFile != nil {
		r := &corev1.SecretReference{Name: s.AzureFile.SecretName}
		if s.AzureFile.SecretNamespace != nil {
			r.Namespace = *s.AzureFile.SecretNamespace
		}
		add(r)
	}
	if s.FlexVolume != nil {
		add(s.FlexVolume.SecretRef)
	}
	return keys, nil
}
