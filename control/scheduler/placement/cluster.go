package placement

import (
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"berth/admission"
	"berth/podspec"
)

// Cluster is the picture that choices are made from. It has one owner: its
// methods are not safe to call from several goroutines at once.
type Cluster struct {
	nodes      map[string]*node
	names      []string // of the nodes that exist, in order
	pods       map[types.UID]*subject
	namespaces map[string]labels.Set
	images     map[string]int // on how many nodes an image is
}

// node is a node, or a name that pods are bound to before the node is seen.
type node struct {
	admission.Node

	seen          bool
	unschedulable bool
	images        map[string]int64 // bytes, by name
	used          admission.Used
	wished        amounts // what its pods take, small amounts assumed where they say nothing
	pods          map[types.UID]*subject
	affine        map[types.UID]*subject // of pods, those with terms about other pods
	nominated     map[types.UID]*subject // not here yet: room was made for them
}

// NewCluster is one without nodes.
func NewCluster() *Cluster {
	return &Cluster{
		nodes: map[string]*node{}, pods: map[types.UID]*subject{},
		namespaces: map[string]labels.Set{}, images: map[string]int{},
	}
}

// SetNode takes in a new node or what is new about it.
func (c *Cluster) SetNode(n *corev1.Node) {
	at := c.node(n.Name)
	if !at.seen {
		at.seen = true
		c.order()
	}
	c.forgetImages(at)
	at.Node = admission.Node{
		Name: n.Name, OS: n.Labels[corev1.LabelOSStable], Labels: n.Labels,
		Taints: n.Spec.Taints, Allocatable: n.Status.Allocatable,
	}
	at.unschedulable = n.Spec.Unschedulable
	at.images = map[string]int64{}
	for _, image := range n.Status.Images {
		for _, name := range image.Names {
			at.images[name] = image.SizeBytes
		}
	}
	for name := range at.images {
		c.images[name]++
	}
}

// RemoveNode forgets a node; the pods bound to its name stay known.
func (c *Cluster) RemoveNode(name string) {
	at, ok := c.nodes[name]
	if !ok {
		return
	}
	c.forgetImages(at)
	at.Node, at.seen, at.images = admission.Node{Name: name}, false, nil
	c.dropEmpty(at)
	c.order()
}

// Nodes gives the names of the nodes, in order.
func (c *Cluster) Nodes() []string { return slices.Clone(c.names) }

// SetNamespace takes in a namespace's labels, which terms may select by.
func (c *Cluster) SetNamespace(name string, set map[string]string) { c.namespaces[name] = set }

// RemoveNamespace forgets a namespace.
func (c *Cluster) RemoveNamespace(name string) { delete(c.namespaces, name) }

// Add places a pod on the node that its spec names; known already, it is
// replaced. A pod without a node, or one that has ended, is removed.
func (c *Cluster) Add(pod *corev1.Pod) {
	c.Remove(pod.UID)
	if pod.Spec.NodeName == "" || Ended(pod) {
		return
	}
	s := newSubject(pod)
	c.pods[pod.UID] = s
	at := c.node(pod.Spec.NodeName)
	at.pods[pod.UID] = s
	at.used.AddBound(pod)
	at.wished.add(s.wished, 1)
	if s.terms.any() {
		at.affine[pod.UID] = s
	}
}

// Ended reports whether nothing of the pod runs any more, nor ever will.
func Ended(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
}

// Remove takes a pod from its node and withdraws its nomination.
func (c *Cluster) Remove(uid types.UID) {
	c.Nominate(uid, nil, "")
	s, ok := c.pods[uid]
	if !ok {
		return
	}
	delete(c.pods, uid)
	at := c.nodes[s.pod.Spec.NodeName]
	delete(at.pods, uid)
	delete(at.affine, uid)
	at.used.RemoveBound(s.pod)
	at.wished.add(s.wished, -1)
	c.dropEmpty(at)
}

// Placed reports on which node a pod is; empty: on none.
func (c *Cluster) Placed(uid types.UID) string {
	if s, ok := c.pods[uid]; ok {
		return s.pod.Spec.NodeName
	}
	return ""
}

// Nominate keeps room for a pod on a node against pods of no higher priority;
// with no node the nomination is withdrawn.
func (c *Cluster) Nominate(uid types.UID, pod *corev1.Pod, name string) {
	for _, at := range c.nodes {
		if _, ok := at.nominated[uid]; ok {
			delete(at.nominated, uid)
			c.dropEmpty(at)
		}
	}
	if name != "" {
		c.node(name).nominated[uid] = newSubject(pod)
	}
}

func (c *Cluster) node(name string) *node {
	at, ok := c.nodes[name]
	if !ok {
		at = &node{
			Node: admission.Node{Name: name}, pods: map[types.UID]*subject{},
			affine: map[types.UID]*subject{}, nominated: map[types.UID]*subject{},
		}
		c.nodes[name] = at
	}
	return at
}

func (c *Cluster) dropEmpty(at *node) {
	if !at.seen && len(at.pods) == 0 && len(at.nominated) == 0 {
		delete(c.nodes, at.Name)
	}
}

func (c *Cluster) forgetImages(at *node) {
	for name := range at.images {
		if c.images[name]--; c.images[name] <= 0 {
			delete(c.images, name)
		}
	}
}

func (c *Cluster) order() {
	c.names = c.names[:0]
	for _, name := range slices.Sorted(maps.Keys(c.nodes)) {
		if c.nodes[name].seen {
			c.names = append(c.names, name)
		}
	}
}

// Amounts that a container is taken to want when it says nothing, so that pods
// without requests spread too; upstream's.
const (
	quietMilliCPU = 100
	quietMemory   = 200 << 20
)

type amounts struct{ milliCPU, memory int64 }

func (a *amounts) add(b amounts, sign int64) {
	a.milliCPU += sign * b.milliCPU
	a.memory += sign * b.memory
}

func wishesOf(pod *corev1.Pod) amounts {
	requests := podspec.RequestsWithStatus(pod)
	var quiet amounts
	for i := range pod.Spec.Containers {
		asked := pod.Spec.Containers[i].Resources.Requests
		if _, ok := asked[corev1.ResourceCPU]; !ok {
			quiet.milliCPU += quietMilliCPU
		}
		if _, ok := asked[corev1.ResourceMemory]; !ok {
			quiet.memory += quietMemory
		}
	}
	if r := pod.Spec.Resources; r != nil && len(r.Requests) > 0 {
		quiet = amounts{}
	}
	return amounts{requests.Cpu().MilliValue() + quiet.milliCPU, requests.Memory().Value() + quiet.memory}
}
