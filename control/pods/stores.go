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
	StoreOptions registry.StoreOptions
	// GetNode finds a node by name.
	GetNode func(ctx context.Context, name string) (*corev1.Node, error)
	// ListBudgets lists the disruption budgets of a namespace; TakeBudget changes the
	// status of one if nobody else did since (else a conflict is the error).
	ListBudgets        func(ctx context.Context, namespace string) ([]policyv1.PodDisruptionBudget, error)
	UpdateBudgetStatus func(ctx context.Context, budget *policyv1.PodDisruptionBudget) error
	// Authorizer decides who may do what.
	Authorizer authorizer.Authorizer
	// KubeletTransport carries requests to port 10250 of nodes as one whom they serve;
	// ToNodesUnverified does for those who do not care whether the node is who it
	// says, ToPods carries requests to the ports of pods.
	KubeletTransport, InsecureKubeletTransport, PodTransport http.RoundTripper
}

// New makes pods with all that is served of them and of the nodes that they are
// reached through, by path.
func New(kind *registry.Kind, o Options) (*registry.Store, map[string]rest.Storage, error) {
	if o.GetNode == nil || o.ListBudgets == nil || o.UpdateBudgetStatus == nil || o.KubeletTransport == nil || o.Authorizer == nil {
		return nil, nil, errors.New("pods: nodes, budgets, the authorizer and the way to nodes must be given")
	}
	strategy := registry.NewStrategy(kind, o.StoreOptions.Typer)
	main, err := registry.NewStoreWithStrategy(kind, o.StoreOptions, podStrategy{strategy})
	if err != nil {
		return nil, nil, err
	}
	binding := &Binding{pods: main}
	reach := &podLocator{Options: o, pods: main}
	return main, map[string]rest.Storage{
		"pods":                     main,
		"pods/status":              registry.NewSubresource(main, podStatusStrategy{registry.StatusStrategy{Strategy: strategy}}),
		"pods/ephemeralcontainers": registry.NewSubresource(main, newEphemeralContainersStrategy(strategy)),
		"pods/resize":              registry.NewSubresource(main, newResizeStrategy(strategy)),
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
