package pods

import (
	"context"
	"errors"
	"net/http"
	"reflect"
	"strings"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/registry/rest"

	"berth/control/registry"
)

// Options is what pods need of the server beside their own store.
type Options struct {
	Place registry.Place
	// Node finds a node by name.
	Node func(ctx context.Context, name string) (*corev1.Node, error)
	// Budgets lists the disruption budgets of a namespace; TakeBudget changes the
	// status of one if nobody else did since (else a conflict is the error).
	Budgets    func(ctx context.Context, namespace string) ([]policyv1.PodDisruptionBudget, error)
	TakeBudget func(ctx context.Context, budget *policyv1.PodDisruptionBudget) error
	// Authorizer decides who may do what.
	Authorizer authorizer.Authorizer
	// ToNodes carries requests to port 10250 of nodes as one whom they serve;
	// ToNodesUnverified does for those who do not care whether the node is who it
	// says, ToPods carries requests to the ports of pods.
	ToNodes, ToNodesUnverified, ToPods http.RoundTripper
}

// New makes pods with all that is served of them and of the nodes that they are
// reached through, by path.
func New(kind *registry.Kind, o Options) (*registry.Store, map[string]rest.Storage, error) {
	if o.Node == nil || o.Budgets == nil || o.TakeBudget == nil || o.ToNodes == nil || o.Authorizer == nil {
		return nil, nil, errors.New("pods: nodes, budgets, the authorizer and the way to nodes must be given")
	}
	strategy := registry.NewStrategy(kind, o.Place.Typer)
	main, err := registry.NewStoreWith(kind, o.Place, rules{strategy})
	if err != nil {
		return nil, nil, err
	}
	binding := &Binding{pods: main}
	reach := &reach{Options: o, pods: main}
	return main, map[string]rest.Storage{
		"pods":                     main,
		"pods/status":              registry.NewStatusWith(main, statusRules{registry.StatusStrategy{Strategy: strategy}}),
		"pods/ephemeralcontainers": registry.NewStatusWith(main, ephemeralRules(strategy)),
		"pods/resize":              registry.NewStatusWith(main, resizeRules(strategy)),
		"pods/binding":             binding,
		"bindings":                 &Bindings{binding},
		"pods/eviction":            &Eviction{pods: main, options: o},
		"pods/log":                 &Log{reach},
		"pods/exec":                &Exec{reach},
		"pods/attach":              &Attach{reach},
		"pods/portforward":         &PortForward{reach},
		"pods/proxy":               &Proxy{reach},
	}, nil
}

// specFields are the names of the fields of a pod's spec.
func specFields() []string {
	var out []string
	for f := range reflect.TypeFor[corev1.PodSpec]().Fields() {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		out = append(out, name)
	}
	return out
}
