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

// Options holds the dependencies of the pod resources.
type Options struct {
	StoreOptions registry.StoreOptions
	// GetNode returns a node by name.
	GetNode func(ctx context.Context, name string) (*corev1.Node, error)
	// ListBudgets returns the disruption budgets of a namespace. UpdateBudgetStatus updates the
	// status of one. It returns a conflict if the budget has changed.
	ListBudgets        func(ctx context.Context, namespace string) ([]policyv1.PodDisruptionBudget, error)
	UpdateBudgetStatus func(ctx context.Context, budget *policyv1.PodDisruptionBudget) error
	// Authorizer authorizes WebSocket connections, see podLocator.authorizeCreate.
	Authorizer authorizer.Authorizer
	// KubeletTransport returns the authenticated transport to the kubelet of a node.
	KubeletTransport func(node string) http.RoundTripper
	// InsecureKubeletTransport does not verify the serving certificates of kubelets. PodTransport is the transport
	// to pods.
	InsecureKubeletTransport, PodTransport http.RoundTripper
}

// New creates the store of pods and all storages of pods by path.
func New(kind *registry.Kind, o Options) (*registry.Store, map[string]rest.Storage, error) {
	if o.GetNode == nil || o.ListBudgets == nil || o.UpdateBudgetStatus == nil || o.KubeletTransport == nil ||
		o.Authorizer == nil {
		return nil, nil, errors.New(
			"pods: GetNode, ListBudgets, UpdateBudgetStatus, KubeletTransport and Authorizer are required",
		)
	}
	strategy := registry.NewStrategy(kind, o.StoreOptions.Typer)
	main, err := registry.NewStoreWithStrategy(kind, o.StoreOptions, podStrategy{strategy})
	if err != nil {
		return nil, nil, err
	}
	binding := &Binding{pods: main}
	locator := &podLocator{Options: o, pods: main}
	return main, map[string]rest.Storage{
		"pods": main,
		"pods/status": registry.NewSubresource(
			main,
			podStatusStrategy{registry.StatusStrategy{Strategy: strategy}},
		),
		"pods/ephemeralcontainers": registry.NewSubresource(main, newEphemeralContainersStrategy(strategy)),
		"pods/resize":              registry.NewSubresource(main, newResizeStrategy(strategy)),
		"pods/binding":             binding,
		"bindings":                 &Bindings{binding},
		"pods/eviction":            &Eviction{pods: main, options: o},
		"pods/log":                 &Log{locator},
		"pods/why":                 &NodeView{podLocator: locator, kubeletPath: "podWhy"},
		"pods/timeline":            &NodeView{podLocator: locator, kubeletPath: "podTimeline"},
		"pods/exec":                &Exec{locator},
		"pods/attach":              &Attach{locator},
		"pods/portforward":         &PortForward{locator},
		"pods/proxy":               &Proxy{locator},
	}, nil
}

// specFields returns the JSON names of the fields of a pod's spec.
func specFields() []string {
	var out []string
	for f := range reflect.TypeFor[corev1.PodSpec]().Fields() {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		out = append(out, name)
	}
	return out
}
