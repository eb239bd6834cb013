package admission

import (
	"context"
	"fmt"
	"slices"
	"strings"

	certificatesv1 "k8s.io/api/certificates/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	resourcev1 "k8s.io/api/resource/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/client-go/kubernetes"

	"berth/control/authz"
)

// nodeRestriction limits the writes of a node to its own objects: its Node, Lease and CSINode, its
// ResourceSlices, the status of its pods, its mirror pods, and tokens for its pods. It ignores
// requests of other users.
type nodeRestriction struct {
	*admission.Handler

	client     kubernetes.Interface
	getPod     func(ctx context.Context, namespace, name string) (*corev1.Pod, error) // reads from the API server
	authorizer authorizer.Authorizer
	audience   string // the API server's audience
}

func newNodeRestriction(c Config) (admission.Interface, error) {
	return &nodeRestriction{admission.NewHandler(admission.Create, admission.Update, admission.Delete), c.Client,
		c.GetPod,
		c.Authorizer, c.Audience}, nil
}

// Validate checks a write of a node.
func (n *nodeRestriction) Validate(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	node, ok := authz.NodeName(a.GetUserInfo())
	if !ok {
		if authz.IsUnnamedNode(a.GetUserInfo()) {
			return admission.NewForbidden(a, fmt.Errorf("could not determine node from user %q",
				a.GetUserInfo().GetName()))
		}
		return nil
	}
	var err error
	switch a.GetResource().GroupResource() {
	case schema.GroupResource{Resource: "pods"}:
		err = n.pods(ctx, node, a)
	case schema.GroupResource{Resource: "nodes"}:
		err = n.nodes(node, a)
	case schema.GroupResource{Resource: "persistentvolumeclaims"}:
		err = n.claims(node, a)
	case schema.GroupResource{Resource: "serviceaccounts"}:
		err = n.token(ctx, node, a)
	case schema.GroupResource{Group: coordinationv1.GroupName, Resource: "leases"}:
		err = requireOwnName(node, a, "node lease")
	case schema.GroupResource{Group: storagev1.GroupName, Resource: "csinodes"}:
		err = requireOwnName(node, a, "CSINode")
	case schema.GroupResource{Group: resourcev1.GroupName, Resource: "resourceslices"}:
		err = n.slice(node, a)
	case schema.GroupResource{Group: certificatesv1.GroupName, Resource: "certificatesigningrequests"}:
		err = n.request(a)
	case schema.GroupResource{Group: certificatesv1.GroupName, Resource: "podcertificaterequests"}:
		err = n.podCertificate(ctx, node, a)
	}
	if err != nil {
		return admission.NewForbidden(a, err)
	}
	return nil
}

func requireOwnName(node string, a admission.Attributes, resource string) error {
	name := a.GetName()
	if o, ok := a.GetObject().(metav1.Object); ok && name == "" {
		name = o.GetName()
	}
	if name != node {
		return fmt.Errorf("can only access %s with the same name as the requesting node", resource)
	}
	return nil
}

func (n *nodeRestriction) pods(ctx context.Context, node string, a admission.Attributes) error {
	switch sub := a.GetSubresource(); {
	case sub == "" && a.GetOperation() == admission.Create:
		pod, ok := a.GetObject().(*corev1.Pod)
		if !ok {
			return fmt.Errorf("unexpected type %T", a.GetObject())
		}
		return n.mirror(ctx, node, pod)
	case sub == "" && a.GetOperation() == admission.Delete:
		if pod, ok := a.GetOldObject().(*corev1.Pod); !ok || pod.Spec.NodeName != node {
			return fmt.Errorf("node %q can only delete pods with spec.nodeName set to itself", node)
		}
		return nil
	case sub == "status" && a.GetOperation() == admission.Update:
		old, ok := a.GetOldObject().(*corev1.Pod)
		pod, newOK := a.GetObject().(*corev1.Pod)
		if !ok || !newOK || old.Spec.NodeName != node {
			return fmt.Errorf("node %q can only update pod status for pods with spec.nodeName set to itself", node)
		}
		if !equality.Semantic.DeepEqual(old.Labels, pod.Labels) {
			return fmt.Errorf("node %q cannot update labels through pod status", node)
		}
		// The listed claims become readable to the node.
		if !equality.Semantic.DeepEqual(old.Status.ResourceClaimStatuses, pod.Status.ResourceClaimStatuses) ||
			!equality.Semantic.DeepEqual(old.Status.ExtendedResourceClaimStatus,
				pod.Status.ExtendedResourceClaimStatus) {
			return fmt.Errorf("node %q cannot update resource claim statuses", node)
		}
		return nil
	case sub == "eviction" && a.GetOperation() == admission.Create:
		return n.eviction(ctx, node, a)
	default:
		return fmt.Errorf("unexpected operation %q on pods/%s by node %q", a.GetOperation(), sub, node)
	}
}

// eviction reads the pod from the API server, because a stale cache may have an earlier pod of that
// name on another node.
func (n *nodeRestriction) eviction(ctx context.Context, node string, a admission.Attributes) error {
	e, ok := a.GetObject().(*policyv1.Eviction)
	if !ok {
		return fmt.Errorf("unexpected type %T", a.GetObject())
	}
	name := a.GetName()
	if name == "" {
		name = e.Name
	}
	pod, err := n.getPod(ctx, a.GetNamespace(), name)
	if err != nil {
		return err
	}
	if pod.Spec.NodeName != node {
		return fmt.Errorf("node %s can only evict pods with spec.nodeName set to itself", node)
	}
	return nil
}

// mirror checks a mirror pod: it must be bound to the node, owned by the node, and must not refer
// to API objects.
func (n *nodeRestriction) mirror(ctx context.Context, node string, pod *corev1.Pod) error {
	if !isMirror(pod) {
		return fmt.Errorf("pod does not have %q annotation, node %q can only create mirror pods",
			corev1.MirrorPodAnnotationKey, node)
	}
	if pod.Spec.NodeName != node {
		return fmt.Errorf("node %q can only create pods with spec.nodeName set to itself", node)
	}
	if len(pod.OwnerReferences) != 1 {
		return fmt.Errorf("node %q can only create pods with a single owner reference set to itself", node)
	}
	owner := pod.OwnerReferences[0]
	switch {
	case owner.APIVersion != "v1" || owner.Kind != "Node" || owner.Name != node:
		return fmt.Errorf("node %q can only create pods with an owner reference set to itself", node)
	case owner.Controller == nil || !*owner.Controller:
		return fmt.Errorf("node %q can only create pods with a controller owner reference set to itself", node)
	case owner.BlockOwnerDeletion != nil && *owner.BlockOwnerDeletion:
		return fmt.Errorf("node %q must not set blockOwnerDeletion on an owner reference", node)
	}
	self, err := n.client.CoreV1().Nodes().Get(ctx, node, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("error looking up node %s to verify uid: %w", node, err)
	}
	if owner.UID != self.UID {
		return fmt.Errorf("node %s UID mismatch: expected %s got %s", owner.Name, owner.UID, self.UID)
	}
	if pod.Spec.ServiceAccountName != "" {
		return fmt.Errorf("node %q can not create pods that reference a service account", node)
	}
	if what := referencedResource(pod); what != "" {
		return fmt.Errorf("node %q can not create pods that reference %s", node, what)
	}
	if len(pod.Spec.ResourceClaims) > 0 {
		return fmt.Errorf("node %q can not create pods that reference resourceclaims", node)
	}
	return nil
}

func (n *nodeRestriction) nodes(node string, a admission.Attributes) error {
	name := a.GetName()
	now, ok := a.GetObject().(*corev1.Node)
	if ok && name == "" {
		name = now.Name
	}
	if name != node {
		return fmt.Errorf("node %q is not allowed to modify node %q", node, name)
	}
	if !ok || a.GetOperation() == admission.Delete {
		return nil
	}
	old, _ := a.GetOldObject().(*corev1.Node)
	if a.GetOperation() == admission.Create || old == nil {
		old = &corev1.Node{Spec: corev1.NodeSpec{Taints: now.Spec.Taints}}
	}
	if forbidden := forbiddenLabels(old.Labels, now.Labels); len(forbidden) > 0 {
		verb := "modify labels"
		if a.GetOperation() == admission.Create {
			verb = "set the following labels"
		}
		return fmt.Errorf("node %q is not allowed to %s: %s", node, verb, strings.Join(forbidden, ", "))
	}
	if !equality.Semantic.DeepEqual(old.Spec.Taints, now.Spec.Taints) {
		return fmt.Errorf("node %q is not allowed to modify taints", node)
	}
	// All nodes route the pod CIDR to this node: choosing it would redirect the traffic of other
	// pods.
	if old.Spec.PodCIDR != now.Spec.PodCIDR || !equality.Semantic.DeepEqual(old.Spec.PodCIDRs, now.Spec.PodCIDRs) {
		return fmt.Errorf("node %q is not allowed to modify its pod CIDR", node)
	}
	if !equality.Semantic.DeepEqual(old.OwnerReferences, now.OwnerReferences) {
		return fmt.Errorf("node %q is not allowed to modify ownerReferences", node)
	}
	return nil
}

// nodeLabels are the labels in Kubernetes domains that a node may set.
var nodeLabels = []string{
	corev1.LabelHostname, corev1.LabelTopologyZone, corev1.LabelTopologyRegion, corev1.LabelFailureDomainBetaZone,
	corev1.LabelFailureDomainBetaRegion, corev1.LabelInstanceType, corev1.LabelInstanceTypeStable,
	corev1.LabelOSStable, corev1.LabelArchStable, "beta.kubernetes.io/os", "beta.kubernetes.io/arch",
}

// forbiddenLabels returns the changed labels that a node may not set: all in
// node-restriction.kubernetes.io, and those in kubernetes.io and k8s.io that are not in nodeLabels
// or a domain for kubelets.
func forbiddenLabels(old, now map[string]string) (forbidden []string) {
	check := func(key string) {
		domain, _, prefixed := strings.Cut(key, "/")
		if !prefixed {
			return
		}
		under := func(of string) bool { return domain == of || strings.HasSuffix(domain, "."+of) }
		switch {
		case under("node-restriction.kubernetes.io"):
		case under("kubelet.kubernetes.io"), under("node.kubernetes.io"), slices.Contains(nodeLabels, key):
			return
		case !under("kubernetes.io") && !under("k8s.io"):
			return
		}
		forbidden = append(forbidden, key)
	}
	for key, value := range now {
		if have, ok := old[key]; !ok || have != value {
			check(key)
		}
	}
	for key := range old {
		if _, ok := now[key]; !ok {
			check(key)
		}
	}
	slices.Sort(forbidden)
	return forbidden
}

// claims allows only changes of the status fields that report the resize of a volume.
func (n *nodeRestriction) claims(node string, a admission.Attributes) error {
	old, ok := a.GetOldObject().(*corev1.PersistentVolumeClaim)
	now, newOK := a.GetObject().(*corev1.PersistentVolumeClaim)
	if a.GetSubresource() != "status" || a.GetOperation() != admission.Update || !ok || !newOK {
		return fmt.Errorf("node %q may only update the status of persistent volume claims", node)
	}
	old, now = old.DeepCopy(), now.DeepCopy()
	for _, c := range []*corev1.PersistentVolumeClaim{old, now} {
		c.Status.Capacity, c.Status.Conditions, c.Status.AllocatedResources, c.Status.AllocatedResourceStatuses = nil,
			nil,
			nil, nil
		c.ManagedFields, c.ResourceVersion = nil, ""
	}
	if !equality.Semantic.DeepEqual(old, now) {
		return fmt.Errorf("node %q is not allowed to update fields other than status.capacity, status.conditions and "+
			"status.allocatedResources", node)
	}
	return nil
}

// slice checks that a new or deleted ResourceSlice belongs to the node. For updates, the node
// authorizer has checked this by name, and the node name of a slice is immutable.
func (n *nodeRestriction) slice(node string, a admission.Attributes) error {
	var verb string
	var s runtime.Object
	switch a.GetOperation() {
	case admission.Create:
		verb, s = "create", a.GetObject()
	case admission.Delete:
		verb, s = "delete", a.GetOldObject()
	default:
		return nil
	}
	slice, ok := s.(*resourcev1.ResourceSlice)
	if !ok || slice.Spec.NodeName == nil || *slice.Spec.NodeName != node {
		return fmt.Errorf("can only %s ResourceSlice with the same NodeName as the requesting node", verb)
	}
	return nil
}

// request checks that a node requests a certificate for its own name only.
func (n *nodeRestriction) request(a admission.Attributes) error {
	r, ok := signingRequest(a)
	if !ok || r.Spec.SignerName != certificatesv1.KubeAPIServerClientKubeletSignerName &&
		r.Spec.SignerName != certificatesv1.KubeletServingSignerName {
		return nil
	}
	parsed, err := parseRequest(r.Spec.Request)
	if err != nil {
		return fmt.Errorf("unable to parse csr: %w", err)
	}
	if parsed.Subject.CommonName != a.GetUserInfo().GetName() {
		return fmt.Errorf("can only create a node CSR with CN=%s", a.GetUserInfo().GetName())
	}
	return nil
}

// podCertificate checks that a node requests a certificate for one of its pods, with the pod's service account.
func (n *nodeRestriction) podCertificate(ctx context.Context, node string, a admission.Attributes) error {
	if a.GetOperation() != admission.Create || a.GetSubresource() != "" {
		return fmt.Errorf("unexpected operation %q on podcertificaterequests by node %q", a.GetOperation(), node)
	}
	r, ok := a.GetObject().(*certificatesv1.PodCertificateRequest)
	if !ok {
		return fmt.Errorf("unexpected type %T", a.GetObject())
	}
	s := &r.Spec
	if string(s.NodeName) != node {
		return fmt.Errorf("PodCertificateRequest.Spec.NodeName=%q, which is not the requesting node %q", s.NodeName,
			node)
	}
	self, err := n.client.CoreV1().Nodes().Get(ctx, node, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("retrieve node %q: %w", node, err)
	}
	if self.UID != s.NodeUID {
		return fmt.Errorf("PodCertificateRequest for node %q contains NodeUID %q, the node has %q", node, s.NodeUID,
			self.UID)
	}
	pod, err := n.getPod(ctx, a.GetNamespace(), s.PodName)
	switch {
	case err != nil:
		return fmt.Errorf("retrieve pod %s/%s: %w", a.GetNamespace(), s.PodName, err)
	case pod.UID != s.PodUID:
		return fmt.Errorf("PodCertificateRequest for pod %q contains PodUID %q, the pod has %q", s.PodName, s.PodUID,
			pod.UID)
	case isMirror(pod):
		return fmt.Errorf("pod %q is a mirror pod", s.PodName)
	case pod.Spec.NodeName != node:
		return fmt.Errorf("pod %q is not running on node %q", s.PodName, node)
	case pod.Spec.ServiceAccountName != s.ServiceAccountName:
		return fmt.Errorf("PodCertificateRequest for pod %q contains ServiceAccountName %q, the pod has %q", s.PodName,
			s.ServiceAccountName, pod.Spec.ServiceAccountName)
	}
	account, err := n.client.CoreV1().ServiceAccounts(a.GetNamespace()).Get(ctx, s.ServiceAccountName,
		metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("retrieve service account %s/%s: %w", a.GetNamespace(), s.ServiceAccountName, err)
	}
	if account.UID != s.ServiceAccountUID {
		return fmt.Errorf("PodCertificateRequest for pod %q contains ServiceAccountUID %q, the service account has %q",
			s.PodName, s.ServiceAccountUID, account.UID)
	}
	return nil
}
