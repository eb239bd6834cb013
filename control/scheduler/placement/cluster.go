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
	nodes      map[string]*nodeInfo
	names      []string // of the nodes that exist, in order
	pods       map[types.UID]*podInfo
	namespaces map[string]labels.Set
	images     map[string]int // on how many nodes an image is
}

// nodeInfo is a node, or a name that pods are bound to before the node is seen.
type nodeInfo struct {
	admission.Node

	exists           bool
	unschedulable    bool
	images           map[string]int64 // bytes, by name
	used             admission.Used
	nonZeroRequests  cpuAndMemory // what its pods take, small amounts assumed where they say nothing
	pods             map[types.UID]*podInfo
	podsWithAffinity map[types.UID]*podInfo // of pods, those with terms about other pods
	nominated        map[types.UID]*podInfo // not here yet: room was made for them
}

// NewCluster is one without nodes.
func NewCluster() *Cluster {
	return &Cluster{
		nodes: map[string]*nodeInfo{}, pods: map[types.UID]*podInfo{},
		namespaces: map[string]labels.Set{}, images: map[string]int{},
	}
}

// SetNode takes in a new node or what is new about it.
func (c *Cluster) SetNode(n *corev1.Node) {
	at := c.nodeInfo(n.Name)
	if !at.exists {
		at.exists = true
		c.sortNames()
	}
	c.removeImages(at)
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
	c.removeImages(at)
	at.Node, at.exists, at.images = admission.Node{Name: name}, false, nil
	c.removeIfUnused(at)
	c.sortNames()
}

// NodeNames gives the names of the nodes, in order.
func (c *Cluster) NodeNames() []string { return slices.Clone(c.names) }

// SetNamespace takes in a namespace's labels, which terms may select by.
func (c *Cluster) SetNamespace(name string, set map[string]string) { c.namespaces[name] = set }

// RemoveNamespace forgets a namespace.
func (c *Cluster) RemoveNamespace(name string) { delete(c.namespaces, name) }

// AddPod places a pod on the node that its spec names; known already, it is
// replaced. A pod without a node, or one that has ended, is removed.
func (c *Cluster) AddPod(pod *corev1.Pod) {
	c.RemovePod(pod.UID)
	if pod.Spec.NodeName == "" || IsTerminal(pod) {
		return
	}
	s := newPodInfo(pod)
	c.pods[pod.UID] = s
	at := c.nodeInfo(pod.Spec.NodeName)
	at.pods[pod.UID] = s
	at.used.AddBound(pod)
	at.nonZeroRequests.add(s.nonZeroRequests, 1)
	if s.terms.any() {
		at.podsWithAffinity[pod.UID] = s
	}
}

// IsTerminal reports whether nothing of the pod runs any more, nor ever will.
func IsTerminal(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
}

// RemovePod takes a pod from its node and withdraws its nomination.
func (c *Cluster) RemovePod(uid types.UID) {
	c.Nominate(uid, nil, "")
	s, ok := c.pods[uid]
	if !ok {
		return
	}
	delete(c.pods, uid)
	at := c.nodes[s.pod.Spec.NodeName]
	delete(at.pods, uid)
	delete(at.podsWithAffinity, uid)
	at.used.RemoveBound(s.pod)
	at.nonZeroRequests.add(s.nonZeroRequests, -1)
	c.removeIfUnused(at)
}

// NodeOf reports on which node a pod is; empty: on none.
func (c *Cluster) NodeOf(uid types.UID) string {
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
			c.removeIfUnused(at)
		}
	}
	if name != "" {
		c.nodeInfo(name).nominated[uid] = newPodInfo(pod)
	}
}

func (c *Cluster) nodeInfo(name string) *nodeInfo {
	at, ok := c.nodes[name]
	if !ok {
		at = &nodeInfo{
			Node: admission.Node{Name: name}, pods: map[types.UID]*podInfo{},
			podsWithAffinity: map[types.UID]*podInfo{}, nominated: map[types.UID]*podInfo{},
		}
		c.nodes[name] = at
	}
	return at
}

func (c *Cluster) removeIfUnused(at *nodeInfo) {
	if !at.exists && len(at.pods) == 0 && len(at.nominated) == 0 {
		delete(c.nodes, at.Name)
	}
}

func (c *Cluster) removeImages(at *nodeInfo) {
	for name := range at.images {
		if c.images[name]--; c.images[name] <= 0 {
			delete(c.images, name)
		}
	}
}

func (c *Cluster) sortNames() {
	c.names = c.names[:0]
	for _, name := range slices.Sorted(maps.Keys(c.nodes)) {
		if c.nodes[name].exists {
			c.names = append(c.names, name)
		}
	}
}

// Amounts that a container is taken to want when it says nothing, so that pods
// without requests spread too; upstream's.
const (
	defaultMilliCPURequest = 100
	defaultMemoryRequest   = 200 << 20
)

type cpuAndMemory struct{ milliCPU, memory int64 }

func (a *cpuAndMemory) add(b cpuAndMemory, sign int64) {
	a.milliCPU += sign * b.milliCPU
	a.memory += sign * b.memory
}

func nonZeroRequestsOf(pod *corev1.Pod) cpuAndMemory {
	requests := podspec.RequestsWithStatus(pod)
	var quiet cpuAndMemory
	for i := range pod.Spec.Containers {
		asked := pod.Spec.Containers[i].Resources.Requests
		if _, ok := asked[corev1.ResourceCPU]; !ok {
			quiet.milliCPU += defaultMilliCPURequest
		}
		if _, ok := asked[corev1.ResourceMemory]; !ok {
			quiet.memory += defaultMemoryRequest
		}
	}
	if r := pod.Spec.Resources; r != nil && len(r.Requests) > 0 {
		quiet = cpuAndMemory{}
	}
	return cpuAndMemory{requests.Cpu().MilliValue() + quiet.milliCPU, requests.Memory().Value() + quiet.memory}
}
