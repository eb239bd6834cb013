package registry

import (
	"maps"
	"slices"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/registry/rest"
)

// consumers lists the kinds without a warning and what acts on them, or why nothing does.
var consumers = map[schema.GroupResource]string{
	{Resource: "namespaces"}:             "namespace controller",
	{Resource: "pods"}:                   "kubelets",
	{Resource: "nodes"}:                  "scheduler",
	{Resource: "configmaps"}:             "kubelets",
	{Resource: "secrets"}:                "kubelets",
	{Resource: "serviceaccounts"}:        "authentication",
	{Resource: "services"}:               "endpoints controllers; service proxies of the nodes",
	{Resource: "endpoints"}:              "endpointslice-mirroring controller",
	{Resource: "limitranges"}:            "admission",
	{Resource: "resourcequotas"}:         "admission",
	{Resource: "replicationcontrollers"}: "replicationcontroller controller",
	{Resource: "events"}:                 "read by users",
	{Resource: "podtemplates"}: "read by users: also in Kubernetes no " +
		"controller acts on them",
	{Group: "events.k8s.io", Resource: "events"}:                 "read by users",
	{Group: "apps", Resource: "deployments"}:                     "deployment controller",
	{Group: "batch", Resource: "jobs"}:                           "job controller",
	{Group: "batch", Resource: "cronjobs"}:                       "cronjob controller",
	{Group: "apps", Resource: "replicasets"}:                     "replicaset controller",
	{Group: "autoscaling", Resource: "horizontalpodautoscalers"}: "horizontal-pod-autoscaler controller",
	{Group: "apps", Resource: "statefulsets"}:                    "statefulset controller",
	{Group: "apps", Resource: "daemonsets"}:                      "daemonset controller",
	{Group: "apps", Resource: "controllerrevisions"}: "history of the controllers " +
		"that write them",
	{Group: "rbac.authorization.k8s.io", Resource: "roles"}:                "authorization",
	{Group: "rbac.authorization.k8s.io", Resource: "rolebindings"}:         "authorization",
	{Group: "rbac.authorization.k8s.io", Resource: "clusterroles"}:         "authorization",
	{Group: "rbac.authorization.k8s.io", Resource: "clusterrolebindings"}:  "authorization",
	{Group: "certificates.k8s.io", Resource: "certificatesigningrequests"}: "signers",
	{Group: "certificates.k8s.io", Resource: "clustertrustbundles"}:        "nodes; publisher of the server's CA",
	{Group: "certificates.k8s.io", Resource: "podcertificaterequests"}:     "signers of users; cleaner",

	{Group: "admissionregistration.k8s.io", Resource: "mutatingwebhookconfigurations"}:     "admission",
	{Group: "admissionregistration.k8s.io", Resource: "validatingwebhookconfigurations"}:   "admission",
	{Group: "admissionregistration.k8s.io", Resource: "validatingadmissionpolicies"}:       "admission",
	{Group: "admissionregistration.k8s.io", Resource: "validatingadmissionpolicybindings"}: "admission",
	{Group: "admissionregistration.k8s.io", Resource: "mutatingadmissionpolicies"}:         "admission",
	{Group: "admissionregistration.k8s.io", Resource: "mutatingadmissionpolicybindings"}:   "admission",

	{Group: "coordination.k8s.io", Resource: "leases"}: "leader election; node leases: " +
		"node-lifecycle controller",
	{Group: "scheduling.k8s.io", Resource: "priorityclasses"}:        "admission",
	{Group: "node.k8s.io", Resource: "runtimeclasses"}:               "admission and kubelets",
	{Group: "policy", Resource: "poddisruptionbudgets"}:              "evictions",
	{Group: "flowcontrol.apiserver.k8s.io", Resource: "flowschemas"}: "API Priority and Fairness",
	{Group: "flowcontrol.apiserver.k8s.io", Resource: "prioritylevelconfigurations"}: "API Priority and " +
		"Fairness",
	{Group: "discovery.k8s.io", Resource: "endpointslices"}: "kube-proxy and other proxies",
	{Group: "networking.k8s.io", Resource: "ingresses"}: "ingress controllers of users; as in Kubernetes " +
		"none is part of the server",
	{Group: "networking.k8s.io", Resource: "networkpolicies"}: "nodes with networkPolicy: on, see " +
		"networkPolicyWarnings",
	{Group: "networking.k8s.io", Resource: "ingressclasses"}: "admission, ingress controllers of users",
	{Group: "networking.k8s.io", Resource: "servicecidrs"}:   "read by users, see serviceCIDRWarnings",
	{Resource: "persistentvolumes"}:                          "persistentvolume-binder-controller",
	{Resource: "persistentvolumeclaims"}:                     "persistentvolume-binder-controller",
	{Group: "storage.k8s.io", Resource: "storageclasses"}:    "persistentvolume-binder-controller",
	{Group: "storage.k8s.io", Resource: "volumeattributesclasses"}: "sidecars of CSI drivers; " +
		"volumeattributesclass-protection-controller",
	{Group: "storage.k8s.io", Resource: "csinodes"}:             "scheduler; sidecars of CSI drivers",
	{Group: "storage.k8s.io", Resource: "csidrivers"}:           "scheduler; nodes; attach-detach controller",
	{Group: "storage.k8s.io", Resource: "volumeattachments"}:    "sidecars of CSI drivers; nodes",
	{Group: "storage.k8s.io", Resource: "csistoragecapacities"}: "scheduler",
	{Group: "storagemigration.k8s.io", Resource: "storageversionmigrations"}: "storage-version-migrator " +
		"controller",
}

// TestDefaultGarbageCollectionPolicy checks which kinds orphan their dependents by default: the
// same as in upstream.
func TestDefaultGarbageCollectionPolicy(t *testing.T) {
	t.Parallel()
	var orphaning []string
	for _, k := range All() {
		if NewStrategy(k, nil).DefaultGarbageCollectionPolicy(t.Context()) == rest.OrphanDependents {
			orphaning = append(orphaning, k.Resource)
		}
	}
	slices.Sort(orphaning)
	if want := []string{"jobs", "replicationcontrollers"}; !slices.Equal(orphaning, want) {
		t.Errorf("got %v, want %v", orphaning, want)
	}
}

// TestKindsWithoutConsumerWarn checks that each write of a kind on which nothing acts returns a
// warning.
func TestKindsWithoutConsumerWarn(t *testing.T) {
	t.Parallel()
	unknown := maps.Clone(consumers)
	for _, k := range All() {
		consumer, consumed := unknown[k.GroupResource()]
		delete(unknown, k.GroupResource())
		switch {
		case consumed && k.StoredOnlyWarning != "":
			t.Errorf("%s warns %q, but is used by %s", k.Resource, k.StoredOnlyWarning, consumer)
		case !consumed && !strings.HasSuffix(k.StoredOnlyWarning,
			" are stored by this server, which does not act on them"):
			t.Errorf("nothing acts on %s, but the warning is %q", k.Resource, k.StoredOnlyWarning)
		case !consumed:
			s := NewStrategy(k, nil)
			if warnings := s.WarningsOnCreate(t.Context(), k.New()); !slices.Contains(warnings, k.StoredOnlyWarning) {
				t.Errorf("warnings on create of %s: %q", k.Resource, warnings)
			}
			if warnings := s.WarningsOnUpdate(t.Context(), k.New(), k.New()); !slices.Contains(warnings,
				k.StoredOnlyWarning) {
				t.Errorf("warnings on update of %s: %q", k.Resource, warnings)
			}
		}
	}
	for r := range unknown {
		t.Errorf("unknown resource %s", r)
	}
}

// TestWebhookRuleWarnings checks which rules name a resource that webhooks do not intercept.
func TestWebhookRuleWarnings(t *testing.T) {
	t.Parallel()
	rule := func(group, version, resource string) admissionv1.RuleWithOperations {
		return admissionv1.RuleWithOperations{Rule: admissionv1.Rule{APIGroups: []string{group},
			APIVersions: []string{version}, Resources: []string{resource}}}
	}
	rules := []admissionv1.RuleWithOperations{
		rule("", "v1", "pods"), rule("authentication.k8s.io", "v1", "tokenreviews"),
		rule("*", "v1", "tokenreviews"), rule("authentication.k8s.io", "*", "tokenreviews"),
	}
	want := []string{"webhooks[1].rules[1]: tokenreviews.authentication.k8s.io is excluded from admission webhooks; " +
		"this rule will have no effect"}
	for resource, obj := range map[string]runtime.Object{
		"validatingwebhookconfigurations": &admissionv1.ValidatingWebhookConfiguration{
			Webhooks: []admissionv1.ValidatingWebhook{{}, {Rules: rules}}},
		"mutatingwebhookconfigurations": &admissionv1.MutatingWebhookConfiguration{
			Webhooks: []admissionv1.MutatingWebhook{{}, {Rules: rules}}},
	} {
		kind := Find(All(), admissionv1.GroupName, resource)
		if got := NewStrategy(kind, nil).WarningsOnCreate(t.Context(), obj); !slices.Equal(got, want) {
			t.Errorf("%s: got %q, want %q", resource, got, want)
		}
	}
}
