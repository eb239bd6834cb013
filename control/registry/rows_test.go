package registry

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/registry/rest"
)

// consumers says of each kind without a warning who acts on it, or why nobody would.
var consumers = map[schema.GroupResource]string{
	{Resource: "namespaces"}:                                               "the controller that empties them",
	{Resource: "pods"}:                                                     "the nodes",
	{Resource: "nodes"}:                                                    "the scheduler",
	{Resource: "configmaps"}:                                               "the nodes",
	{Resource: "secrets"}:                                                  "the nodes",
	{Resource: "serviceaccounts"}:                                          "authentication",
	{Resource: "services"}:                                                 "the controllers of endpoints; what routes them, see warnService",
	{Resource: "endpoints"}:                                                "the controller that mirrors them",
	{Resource: "limitranges"}:                                              "admission",
	{Resource: "resourcequotas"}:                                           "admission",
	{Resource: "replicationcontrollers"}:                                   "their controller",
	{Resource: "events"}:                                                   "whoever reads them",
	{Resource: "podtemplates"}:                                             "whoever reads them: in Kubernetes too nobody acts on them",
	{Group: "events.k8s.io", Resource: "events"}:                           "whoever reads them",
	{Group: "apps", Resource: "replicasets"}:                               "their controller",
	{Group: "apps", Resource: "controllerrevisions"}:                       "whoever writes them: they are somebody's memory",
	{Group: "rbac.authorization.k8s.io", Resource: "roles"}:                "authorization",
	{Group: "rbac.authorization.k8s.io", Resource: "rolebindings"}:         "authorization",
	{Group: "rbac.authorization.k8s.io", Resource: "clusterroles"}:         "authorization",
	{Group: "rbac.authorization.k8s.io", Resource: "clusterrolebindings"}:  "authorization",
	{Group: "certificates.k8s.io", Resource: "certificatesigningrequests"}: "the signers",
	{Group: "coordination.k8s.io", Resource: "leases"}:                     "whoever leads; those of nodes their controller",
	{Group: "scheduling.k8s.io", Resource: "priorityclasses"}:              "admission",
	{Group: "node.k8s.io", Resource: "runtimeclasses"}:                     "admission and the nodes",
	{Group: "policy", Resource: "poddisruptionbudgets"}:                    "evictions",
	{Group: "discovery.k8s.io", Resource: "endpointslices"}:                "what routes services",
}

// TestDefaultGarbageCollectionPolicy when a delete says nothing of them: those of upstream's
// oldest kinds.
func TestDefaultGarbageCollectionPolicy(t *testing.T) {
	t.Parallel()
	var stay []string
	for _, k := range All() {
		if NewStrategy(k, nil).DefaultGarbageCollectionPolicy(t.Context()) == rest.OrphanDependents {
			stay = append(stay, k.Resource)
		}
	}
	slices.Sort(stay)
	if want := []string{"jobs", "replicationcontrollers"}; !slices.Equal(stay, want) {
		t.Errorf("those of %v, want %v", stay, want)
	}
}

// TestKindsWithoutConsumerWarn at each write: of every kind that is not known to have
// somebody who does.
func TestKindsWithoutConsumerWarn(t *testing.T) {
	t.Parallel()
	left := maps.Clone(consumers)
	for _, k := range All() {
		who, acted := left[k.GroupResource()]
		delete(left, k.GroupResource())
		switch {
		case acted && k.StoredOnlyWarning != "":
			t.Errorf("%s warns %q, and is acted on by %s", k.Resource, k.StoredOnlyWarning, who)
		case !acted && !strings.HasSuffix(k.StoredOnlyWarning, " are stored by this server, which does not act on them"):
			t.Errorf("nobody acts on %s, and it warns %q", k.Resource, k.StoredOnlyWarning)
		case !acted:
			s := NewStrategy(k, nil)
			if said := s.WarningsOnCreate(t.Context(), k.New()); !slices.Contains(said, k.StoredOnlyWarning) {
				t.Errorf("who makes one of %s is told %q", k.Resource, said)
			}
			if said := s.WarningsOnUpdate(t.Context(), k.New(), k.New()); !slices.Contains(said, k.StoredOnlyWarning) {
				t.Errorf("who changes one of %s is told %q", k.Resource, said)
			}
		}
	}
	for r := range left {
		t.Errorf("there is no %s", r)
	}
}
