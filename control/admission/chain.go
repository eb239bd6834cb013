package admission

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/initializer"
	"k8s.io/apiserver/pkg/admission/plugin/namespace/lifecycle"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"

	"berth/control/authz"
	"berth/control/tokens"
)

// Config is what the plugins look things up in.
type Config struct {
	Client     kubernetes.Interface
	Informers  informers.SharedInformerFactory
	Authorizer authorizer.Authorizer // what requests go through
	RBAC       *authz.RBAC
	Bootstrap  *tokens.BootstrapAuthenticator
	// GetPod answers a pod as it is stored now; nil: by Client.
	GetPod func(ctx context.Context, namespace, name string) (*corev1.Pod, error)
	// CountedResources are the kinds whose number a quota can limit.
	CountedResources []schema.GroupResource
	Audience         string // the API server's own, of service account tokens
	// Drained is closed when no more requests come.
	Drained <-chan struct{}
	// Disabled names plugins that shall not run.
	Disabled []string
}

// Names are the plugins in the order in which they run; all mutating ones run
// before the first validating one, and the ones that write come last.
func Names() []string {
	return []string{
		"NamespaceLifecycle", "LimitRanger", "ServiceAccount", "NodeRestriction", "TaintNodesByCondition", "PodTopologyLabels",
		"PodSecurity", "Priority", "DefaultTolerationSeconds", "RuntimeClass", "CertificateApproval", "CertificateSigning",
		"CertificateSubjectRestriction", "RoleEscalation", "BootstrapTokenUse", "DeviceClaims", "ResourceQuota",
	}
}

// New makes the chain.
func New(c Config) (admission.Interface, error) {
	makers := map[string]func(Config) (admission.Interface, error){
		"NamespaceLifecycle": newLifecycle, "LimitRanger": newLimitRanger, "ServiceAccount": newServiceAccounts,
		"TaintNodesByCondition": newTaintNodesByCondition, "PodTopologyLabels": newTopologyLabels, "NodeRestriction": newNodeRestriction, "PodSecurity": newPodSecurity, "Priority": newPriority,
		"DefaultTolerationSeconds": newTolerations, "RuntimeClass": newRuntimeClasses,
		"CertificateApproval": newApproval, "CertificateSigning": newSigning, "CertificateSubjectRestriction": newSubjectRestriction,
		"RoleEscalation": newEscalation, "BootstrapTokenUse": newBootstrapTokenUse, "DeviceClaims": newDeviceClaims, "ResourceQuota": newQuota,
	}
	if c.GetPod == nil {
		c.GetPod = tokens.LiveGetter{Client: c.Client}.Pod
	}
	off := sets.New(c.Disabled...)
	if unknown := off.Difference(sets.New(Names()...)); len(unknown) > 0 {
		return nil, fmt.Errorf("no such admission plugin: %v; there are %v", sets.List(unknown), Names())
	}
	var chain []admission.Interface
	for _, name := range Names() {
		if off.Has(name) {
			continue
		}
		plugin, err := makers[name](c)
		if err != nil {
			return nil, fmt.Errorf("admission plugin %s: %w", name, err)
		}
		chain = append(chain, plugin)
	}
	return admission.NewChainHandler(chain...), nil
}

// newLifecycle refuses objects in namespaces that are missing or ending; it is
// the library's own.
func newLifecycle(c Config) (admission.Interface, error) {
	p, err := lifecycle.NewLifecycle(sets.New(corev1.NamespaceDefault, "kube-system", "kube-public"))
	if err != nil {
		return nil, err
	}
	return p, initialize(c, p)
}

func initialize(c Config, p admission.Interface) error {
	if w, ok := p.(initializer.WantsExternalKubeInformerFactory); ok {
		w.SetExternalKubeInformerFactory(c.Informers)
	}
	if w, ok := p.(initializer.WantsExternalKubeClientSet); ok {
		w.SetExternalKubeClientSet(c.Client)
	}
	if w, ok := p.(admission.InitializationValidator); ok {
		return w.ValidateInitialization()
	}
	return nil
}

// isResource says whether a request is about a resource, and about it as a whole.
func isResource(a admission.Attributes, group, resource string) bool {
	return a.GetResource().GroupResource() == schema.GroupResource{Group: group, Resource: resource}
}

// podOf answers the pod of a request for pods as a whole.
func podOf(a admission.Attributes) (*corev1.Pod, bool) {
	if !isResource(a, "", "pods") || a.GetSubresource() != "" {
		return nil, false
	}
	pod, ok := a.GetObject().(*corev1.Pod)
	return pod, ok
}
