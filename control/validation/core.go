package validation

import (
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"berth/internal/rules"
	"berth/podspec"
)

func core(kind string) schema.GroupKind { return schema.GroupKind{Kind: kind} }

var coreRules = map[schema.GroupKind]rules.Rules{
	core("Namespace"): definition[*corev1.Namespace]{ClusterScoped: true,
		ValidateName: validation.ValidateNamespaceName,
		SetDefaults:  labelNamespace, ValidateCreate: (*validator).namespace,
		ValidateStatus: (*validator).namespaceStatus}.Rules(newValidator),
	core("ConfigMap"): definition[*corev1.ConfigMap]{
		Validate: func(k *validator, c *corev1.ConfigMap) { k.addUnlessMetadata(podspec.ValidateConfigMap(c)) },
		ValidateUpdate: func(k *validator, c, old *corev1.ConfigMap) {
			if k.checkImmutable(c.Immutable, old.Immutable) {
				k.immutableData("data", c.Data, old.Data)
				k.immutableData("binaryData", c.BinaryData, old.BinaryData)
			}
		}}.Rules(newValidator),
	core("Secret"): definition[*corev1.Secret]{SetDefaults: podspec.SetSecretDefaults,
		Validate:       func(k *validator, s *corev1.Secret) { k.addUnlessMetadata(podspec.ValidateSecret(s)) },
		ValidateUpdate: (*validator).secretChange}.Rules(newValidator),
	core("ServiceAccount"): definition[*corev1.ServiceAccount]{
		Prepare:       keepSecretNames,
		PrepareUpdate: func(a, _ *corev1.ServiceAccount) { keepSecretNames(a) },
	}.Rules(newValidator),
	core("Event"): definition[*corev1.Event]{
		ValidateName: pathSegment, Validate: (*validator).event,
	}.Rules(newValidator),
	core("Service"): definition[*corev1.Service]{ValidateName: validation.NameIsDNSLabel,
		SetDefaults: defaultService, PrepareUpdate: patchAllocatedValues,
		ValidateCreate: func(k *validator, s *corev1.Service) { k.service(s, nil) },
		ValidateUpdate: (*validator).serviceChange, ValidateStatus: (*validator).serviceStatus}.Rules(newValidator),
	core("Endpoints"): definition[*corev1.Endpoints]{ //nolint:staticcheck // served as long as upstream serves it
		SetDefaults: func(e *corev1.Endpoints) { //nolint:staticcheck // served as long as upstream serves it
			for i := range e.Subsets {
				for j := range e.Subsets[i].Ports {
					rules.SetIfZero(&e.Subsets[i].Ports[j].Protocol, corev1.ProtocolTCP)
				}
			}
		},
		ValidateCreate: (*validator).endpoints,
		ValidateUpdate: func(k *validator, e, old *corev1.Endpoints) { //nolint:staticcheck // as above
			if !equality.Semantic.DeepEqual(e.Subsets, old.Subsets) {
				k.endpoints(e)
			}
		},
	}.Rules(newValidator),
	core("Node"): definition[*corev1.Node]{
		ClusterScoped:  true,
		Prepare:        func(n *corev1.Node) { clearNodeFields(n, &corev1.Node{}) },
		PrepareUpdate:  clearNodeFields,
		SetDefaults:    defaultNode,
		Validate:       (*validator).node,
		ValidateUpdate: (*validator).nodeChange,
		ValidateStatus: func(k *validator, n, old *corev1.Node) { k.node(n); k.nodeChange(n, old) },
	}.Rules(newValidator),
	core("LimitRange"): definition[*corev1.LimitRange]{
		SetDefaults: defaultLimits,
		Validate:    (*validator).limitRange,
	}.Rules(newValidator),
	core("ResourceQuota"): definition[*corev1.ResourceQuota]{
		Validate:       (*validator).quota,
		ValidateUpdate: (*validator).quotaChange,
		ValidateStatus: (*validator).quotaStatus,
	}.Rules(newValidator),
	core("PodTemplate"): definition[*corev1.PodTemplate]{
		SetDefaults: func(t *corev1.PodTemplate) { podspec.SetTemplateDefaults(&t.Template) },
		Validate: func(k *validator, t *corev1.PodTemplate) {
			k.AddAll(podspec.ValidateTemplate(&t.Template, field.NewPath("template")))
		}}.Rules(newValidator),
	core("ReplicationController"): definition[*corev1.ReplicationController]{
		SetDefaults:    defaultController,
		Validate:       (*validator).controller,
		ValidateStatus: (*validator).controllerStatus,
	}.Rules(newValidator),
}

// addUnlessMetadata adds errors except those about metadata, which are reported already.
func (k *validator) addUnlessMetadata(errs field.ErrorList) {
	for _, err := range errs {
		if !strings.HasPrefix(err.Field, "metadata.") || strings.HasPrefix(err.Field, "metadata.annotations[") {
			k.Add(err)
		}
	}
}

func labelNamespace(n *corev1.Namespace) {
	// Selectors use this label to select a namespace, so users cannot change it.
	if n.Name == "" {
		return
	}
	if n.Labels == nil {
		n.Labels = map[string]string{}
	}
	n.Labels[corev1.LabelMetadataName] = n.Name
}

func (k *validator) namespace(n *corev1.Namespace) {
	at := spec.Child("finalizers")
	for _, f := range n.Spec.Finalizers {
		k.InvalidEach(at, f, utilvalidation.IsQualifiedName(string(f)))
		k.AddAll(rules.Finalizer(at, string(f)))
	}
}

func (k *validator) namespaceStatus(n, _ *corev1.Namespace) {
	at := status.Child("Phase") // the path in Kubernetes' errors
	if n.DeletionTimestamp.IsZero() && n.Status.Phase != corev1.NamespaceActive {
		k.Invalid(at, n.Status.Phase, "may only be 'Active' if `deletionTimestamp` is empty")
	} else if !n.DeletionTimestamp.IsZero() && n.Status.Phase != corev1.NamespaceTerminating {
		k.Invalid(at, n.Status.Phase, "may only be 'Terminating' if `deletionTimestamp` is not empty")
	}
}

// checkImmutable reports whether an object is immutable. It adds an error if the update unsets
// that.
func (k *validator) checkImmutable(now, old *bool) bool {
	if old == nil || !*old {
		return false
	}
	if now == nil || !*now {
		k.Forbidden(field.NewPath("immutable"), "field is immutable when `immutable` is set")
	}
	return true
}

// immutableData validates that data has not changed. No data and an empty map differ, as in Kubernetes.
func (k *validator) immutableData(name string, now, old any) {
	if !reflect.DeepEqual(now, old) {
		k.Forbidden(field.NewPath(name), "field is immutable when `immutable` is set")
	}
}

func (k *validator) secretChange(s, old *corev1.Secret) {
	k.Immutable(field.NewPath("type"), s.Type, old.Type)
	if k.checkImmutable(s.Immutable, old.Immutable) {
		k.immutableData("data", s.Data, old.Data)
	}
}

func (k *validator) endpoints(e *corev1.Endpoints) { //nolint:staticcheck // served as long as upstream serves it
	for i := range e.Subsets {
		s, at := &e.Subsets[i], field.NewPath("subsets").Index(i)
		if len(s.Addresses)+len(s.NotReadyAddresses) == 0 {
			k.Required(at, "must specify `addresses` or `notReadyAddresses`")
		}
		for name, list := range map[string][]corev1.EndpointAddress{"addresses": s.Addresses,
			"notReadyAddresses": s.NotReadyAddresses} {
			for j, a := range list {
				path := at.Child(name).Index(j)
				k.endpointAddress(path.Child("ip"), a.IP)
				if a.Hostname != "" {
					k.InvalidEach(path.Child("hostname"), a.Hostname, utilvalidation.IsDNS1123Label(a.Hostname))
				}
				if a.NodeName != nil {
					k.InvalidEach(path.Child("nodeName"), *a.NodeName, utilvalidation.IsDNS1123Subdomain(*a.NodeName))
				}
			}
		}
		for j, p := range s.Ports {
			path := at.Child("ports").Index(j)
			if p.Name == "" {
				if len(s.Ports) > 1 {
					k.Required(path.Child("name"), "")
				}
			} else {
				k.InvalidEach(path.Child("name"), p.Name, utilvalidation.IsDNS1123Label(p.Name))
			}
			k.port(path.Child("port"), p.Port)
			rules.OneOf(k, path.Child("protocol"), p.Protocol, corev1.ProtocolTCP, corev1.ProtocolUDP,
				corev1.ProtocolSCTP)
			if p.AppProtocol != nil {
				k.InvalidEach(path.Child("appProtocol"), *p.AppProtocol, utilvalidation.IsQualifiedName(*p.AppProtocol))
			}
		}
	}
}

func (k *validator) node(n *corev1.Node) {
	type taintKey struct {
		key    string
		effect corev1.TaintEffect
	}
	seen := map[taintKey]bool{}
	for i, t := range n.Spec.Taints {
		at := metadata.Child("taints").Index(i) // the path in Kubernetes' errors
		k.InvalidEach(at.Child("key"), t.Key, utilvalidation.IsQualifiedName(t.Key))
		k.InvalidEach(at.Child("value"), t.Value, utilvalidation.IsValidLabelValue(t.Value))
		rules.OneOf(
			k,
			at.Child("effect"),
			t.Effect,
			corev1.TaintEffectNoSchedule,
			corev1.TaintEffectPreferNoSchedule,
			corev1.TaintEffectNoExecute,
		)
		if m := (taintKey{t.Key, t.Effect}); seen[m] {
			err := field.Duplicate(at, t)
			err.Detail = "taints must be unique by key and effect pair"
			k.Add(err)
		} else {
			seen[m] = true
		}
	}
	k.nodeAmounts(n)
	k.podRanges(spec.Child("podCIDRs"), n.Spec.PodCIDRs)
}

// defaultNode sets what is allocatable, and makes both fields of the pod ranges equal.
func defaultNode(n *corev1.Node) {
	if n.Status.Allocatable == nil && n.Status.Capacity != nil {
		n.Status.Allocatable = n.Status.Capacity.DeepCopy()
	}
	if first := n.Spec.PodCIDR; first != "" && (len(n.Spec.PodCIDRs) == 0 || n.Spec.PodCIDRs[0] != first) {
		n.Spec.PodCIDRs = []string{first}
	} else if len(n.Spec.PodCIDRs) > 0 {
		n.Spec.PodCIDR = n.Spec.PodCIDRs[0]
	}
}

// podRanges validates the pod ranges of a node, at most one of each IP family.
func (k *validator) podRanges(at *field.Path, list []string) {
	families, valid := map[bool]bool{}, true
	for i, c := range list {
		k.network(at.Index(i), c)
		p, err := netip.ParsePrefix(c)
		valid = valid && err == nil
		families[p.Addr().Is4()] = true
	}
	if len(list) > 1 && (!valid || len(families) < 2 || len(list) > 2) {
		k.Invalid(at, list, "may specify no more than one CIDR for each IP family")
	}
}

func (k *validator) nodeAmounts(n *corev1.Node) {
	for name, list := range map[string]corev1.ResourceList{"capacity": n.Status.Capacity,
		"allocatable": n.Status.Allocatable} {
		for resource, q := range list {
			k.amount(status.Child(name, string(resource)), resource, q)
		}
	}
}

// nodeAddresses validates that no address is there twice.
func (k *validator) nodeAddresses(n *corev1.Node) {
	seen := map[corev1.NodeAddress]bool{}
	for i, a := range n.Status.Addresses {
		if seen[a] {
			k.Add(field.Duplicate(status.Child("addresses").Index(i), a))
		}
		seen[a] = true
	}
}

func (k *validator) nodeChange(n, old *corev1.Node) {
	k.nodeAddresses(n)
	if oldValue := old.Spec.PodCIDRs; len(oldValue) > 0 && !slices.Equal(oldValue, n.Spec.PodCIDRs) {
		k.Forbidden(spec.Child("podCIDRs"), `node updates may not change podCIDR except from "" to valid`)
	}
	if before := old.Spec.ProviderID; before != "" && before != n.Spec.ProviderID {
		k.Invalid(spec.Child("providerID"), n.Spec.ProviderID, "field cannot be modified or cleared once set")
	}
}

func defaultController(r *corev1.ReplicationController) {
	rules.SetIfNil(&r.Spec.Replicas, 1)
	t := r.Spec.Template
	if t == nil {
		return
	}
	podspec.SetTemplateDefaults(t)
	if len(r.Spec.Selector) == 0 {
		r.Spec.Selector = maps.Clone(t.Labels)
	}
	if len(r.Labels) == 0 {
		r.Labels = maps.Clone(t.Labels)
	}
}

func (k *validator) controller(r *corev1.ReplicationController) {
	rules.NotNegative(k, spec.Child("replicas"), r.Spec.Replicas)
	rules.NotNegative(k, spec.Child("minReadySeconds"), &r.Spec.MinReadySeconds)
	if len(r.Spec.Selector) == 0 {
		k.Required(spec.Child("selector"), "")
	}
	t, at := r.Spec.Template, spec.Child("template")
	if t == nil {
		k.Required(at, "")
		return
	}
	for key, value := range r.Spec.Selector {
		if t.Labels[key] != value {
			k.Invalid(at.Child("metadata", "labels"), t.Labels, "`selector` does not match template `labels`")
			break
		}
	}
	k.AddAll(podspec.ValidateTemplate(t, at))
	if p := t.Spec.RestartPolicy; p != corev1.RestartPolicyAlways {
		k.Add(field.NotSupported(at.Child("spec", "restartPolicy"), p,
			[]corev1.RestartPolicy{corev1.RestartPolicyAlways}))
	}
	if t.Spec.ActiveDeadlineSeconds != nil {
		k.Forbidden(at.Child("spec", "activeDeadlineSeconds"),
			"activeDeadlineSeconds in ReplicationController is not Supported")
	}
}

func (k *validator) controllerStatus(r, _ *corev1.ReplicationController) {
	s := &r.Status
	rules.NotNegative(k, status.Child("observedGeneration"), &s.ObservedGeneration)
	k.Counts(map[string]int32{"replicas": s.Replicas, "readyReplicas": s.ReadyReplicas,
		"availableReplicas": s.AvailableReplicas, "fullyLabeledReplicas": s.FullyLabeledReplicas})
	k.NotMoreThan("fullyLabeledReplicas", s.FullyLabeledReplicas, "status.replicas", s.Replicas)
	k.NotMoreThan("readyReplicas", s.ReadyReplicas, "status.replicas", s.Replicas)
	k.NotMoreThan("availableReplicas", s.AvailableReplicas, "status.replicas", s.Replicas)
	k.NotMoreThan("availableReplicas", s.AvailableReplicas, "readyReplicas", s.ReadyReplicas)
}

// keepSecretNames clears everything but the names in references to secrets.
func keepSecretNames(a *corev1.ServiceAccount) {
	for i, s := range a.Secrets {
		a.Secrets[i] = corev1.ObjectReference{Name: s.Name}
	}
}

// clearNodeFields clears the fields of features that are off or have been removed, unless the Node already has them.
func clearNodeFields(n, old *corev1.Node) {
	if old.Spec.PodPreemptionPolicy == nil {
		n.Spec.PodPreemptionPolicy = nil
	}
	if old.Spec.ConfigSource == nil { //nolint:staticcheck // old clients send it
		n.Spec.ConfigSource = nil //nolint:staticcheck // see above
	}
}
