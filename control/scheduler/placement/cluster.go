package placement

import (
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"berth/admission"
	"berth/podspec"
)

// Cluster is the scheduler's cache of nodes, pods and namespaces. It is not safe for concurrent
// use.
type Cluster struct {
	nodes      map[string]*nodeInfo
	names      []string // existing nodes, sorted
	pods       map[types.UID]*podInfo
	nominated  map[types.UID]string // nominated node by pod
	namespaces map[string]labels.Set
	images     map[string]int // number of nodes that have the image
}

// nodeInfo is a node with its pods. It exists also for a node name that pods are bound to before
// the node is known.
type nodeInfo struct {
	admission.Node

	exists           bool
	unschedulable    bool
	images           map[string]int64 // size in bytes by name
	used             admission.Used
	requests         cpuAndMemory // requests of its pods
	nonZeroRequests  cpuAndMemory // the same with defaults for missing requests
	pods             map[types.UID]*podInfo
	podsWithAffinity map[types.UID]*podInfo // the pods with inter-pod affinity terms
	nominated        map[types.UID]*podInfo // pods for which this is the nominated node
}

// NewCluster returns an empty cluster.
func NewCluster() *Cluster {
	return &Cluster{
		nodes: map[string]*nodeInfo{}, pods: map[types.UID]*podInfo{}, nominated: map[types.UID]string{},
		namespaces: map[string]labels.Set{}, images: map[string]int{},
	}
}

// SetNode adds or updates a node.
func (c *Cluster) SetNode(n *corev1.Node) {
	info := c.nodeInfo(n.Name)
	if !info.exists {
		info.exists = true
		c.sortNames()
	}
	c.removeImages(info)
	info.Node = admission.Node{
		Name: n.Name, OS: n.Labels[corev1.LabelOSStable], Labels: n.Labels,
		Taints: n.Spec.Taints, Allocatable: n.Status.Allocatable,
		UnsupportedFeatures: podspec.FeaturesFromLabels(n.Labels),
	}
	info.unschedulable = n.Spec.Unschedulable
	info.images = map[string]int64{}
	for _, image := range n.Status.Images {
		for _, name := range image.Names {
			info.images[name] = image.SizeBytes
		}
	}
	for name := range info.images {
		c.images[name]++
	}
}

// RemoveNode removes a node. The pods bound to its name remain.
func (c *Cluster) RemoveNode(name string) {
	info, ok := c.nodes[name]
	if !ok {
		return
	}
	c.removeImages(info)
	info.Node, info.exists, info.images = admission.Node{Name: name}, false, nil
	c.removeIfUnused(info)
	c.sortNames()
}

// Size returns the number of nodes, and of pods on nodes.
func (c *Cluster) Size() (nodes, pods int) { return len(c.names), len(c.pods) }

// SetNamespace sets the labels of a namespace, which affinity terms may select.
func (c *Cluster) SetNamespace(name string, set map[string]string) { c.namespaces[name] = set }

// RemoveNamespace removes a namespace.
func (c *Cluster) RemoveNamespace(name string) { delete(c.namespaces, name) }

// AddPod adds or replaces a pod on the node in its spec. A pod without a node and a terminated pod
// are removed.
func (c *Cluster) AddPod(pod *corev1.Pod) {
	c.RemovePod(pod.UID)
	if pod.Spec.NodeName == "" || IsTerminal(pod) {
		return
	}
	info := newPodInfo(pod)
	c.pods[pod.UID] = info
	node := c.nodeInfo(pod.Spec.NodeName)
	node.pods[pod.UID] = info
	node.used.AddBound(pod)
	node.requests.add(info.requests, 1)
	node.nonZeroRequests.add(info.nonZeroRequests, 1)
	if info.terms.any() {
		node.podsWithAffinity[pod.UID] = info
	}
}

// IsTerminal reports whether the pod has terminated.
func IsTerminal(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
}

// RemovePod removes a pod from its node and its nomination.
func (c *Cluster) RemovePod(uid types.UID) {
	c.Nominate(uid, nil, "")
	info, ok := c.pods[uid]
	if !ok {
		return
	}
	delete(c.pods, uid)
	node := c.nodes[info.pod.Spec.NodeName]
	delete(node.pods, uid)
	delete(node.podsWithAffinity, uid)
	node.used.RemoveBound(info.pod)
	node.requests.add(info.requests, -1)
	node.nonZeroRequests.add(info.nonZeroRequests, -1)
	c.removeIfUnused(node)
}

// NodeOf returns the node of a pod, or "".
func (c *Cluster) NodeOf(uid types.UID) string {
	if info, ok := c.pods[uid]; ok {
		return info.pod.Spec.NodeName
	}
	return ""
}

// Nominate reserves resources for a pod on a node against pods of lower priority. An empty node
// name removes the nomination.
func (c *Cluster) Nominate(uid types.UID, pod *corev1.Pod, name string) {
	if before, ok := c.nominated[uid]; ok {
		node := c.nodes[before]
		delete(c.nominated, uid)
		delete(node.nominated, uid)
		c.removeIfUnused(node)
	}
	if name != "" {
		c.nominated[uid] = name
		c.nodeInfo(name).nominated[uid] = newPodInfo(pod)
	}
}

// NominatedBelow returns the pods of a lower priority that are nominated for a node, unordered.
func (c *Cluster) NominatedBelow(priority int32, name string) (out []*corev1.Pod) {
	node, ok := c.nodes[name]
	if !ok {
		return nil
	}
	for _, other := range node.nominated {
		if other.priority < priority {
			out = append(out, other.pod)
		}
	}
	return out
}

func (c *Cluster) nodeInfo(name string) *nodeInfo {
	info, ok := c.nodes[name]
	if !ok {
		info = &nodeInfo{
			Node: admission.Node{Name: name}, pods: map[types.UID]*podInfo{},
			podsWithAffinity: map[types.UID]*podInfo{}, nominated: map[types.UID]*podInfo{},
		}
		c.nodes[name] = info
	}
	return info
}

func (c *Cluster) removeIfUnused(node *nodeInfo) {
	if !node.exists && len(node.pods) == 0 && len(node.nominated) == 0 {
		delete(c.nodes, node.Name)
	}
}

func (c *Cluster) removeImages(node *nodeInfo) {
	for name := range node.images {
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

// Requests assumed for containers without any, as in kube-scheduler, so that these pods are spread
// too.
const (
	defaultMilliCPURequest = 100
	defaultMemoryRequest   = 200 << 20
)

type cpuAndMemory struct{ milliCPU, memory int64 }

func (a *cpuAndMemory) add(b cpuAndMemory, sign int64) {
	a.milliCPU += sign * b.milliCPU
	a.memory += sign * b.memory
}

func requestsOf(pod *corev1.Pod) cpuAndMemory {
	requests := podspec.RequestsWithStatus(pod)
	return cpuAndMemory{requests.Cpu().MilliValue(), requests.Memory().Value()}
}

// nonZeroRequestsOf returns the requests with a default for each container that has none.
func nonZeroRequestsOf(pod *corev1.Pod) cpuAndMemory {
	complete := true
	for _, list := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			r := list[i].Resources.Requests
			_, cpu := r[corev1.ResourceCPU]
			_, memory := r[corev1.ResourceMemory]
			complete = complete && cpu && memory
		}
	}
	if complete {
		return requestsOf(pod)
	}
	filled := *pod
	filled.Spec.InitContainers, filled.Spec.Containers = withDefaultRequests(pod.Spec.InitContainers),
		withDefaultRequests(pod.Spec.Containers)
	return requestsOf(&filled)
}

func withDefaultRequests(containers []corev1.Container) []corev1.Container {
	out := slices.Clone(containers)
	for i := range out {
		requests := maps.Clone(out[i].Resources.Requests)
		if requests == nil {
			requests = corev1.ResourceList{}
		}
		if _, ok := requests[corev1.ResourceCPU]; !ok {
			requests[corev1.ResourceCPU] = *resource.NewMilliQuantity(defaultMilliCPURequest, resource.DecimalSI)
		}
		if _, ok := requests[corev1.ResourceMemory]; !ok {
			requests[corev1.ResourceMemory] = *resource.NewQuantity(defaultMemoryRequest, resource.BinarySI)
		}
		out[i].Resources.Requests = requests
	}
	return out
}
