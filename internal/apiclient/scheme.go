package apiclient

import (
	"sync"

	authnv1 "k8s.io/api/authentication/v1"
	authzv1 "k8s.io/api/authorization/v1"
	certsv1 "k8s.io/api/certificates/v1"
	coordv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	nodev1 "k8s.io/api/node/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"

	addressesv1 "berth/services/policy/addresses/v1"
)

// Resource is a resource of the API that the agent uses.
type Resource struct {
	Group schema.GroupVersion
	Name  string // plural, as in paths
	one   func() runtime.Object
	list  func() runtime.Object
}

// Resources that the agent uses.
var (
	Pods = Resource{
		corev1.SchemeGroupVersion,
		"pods",
		func() runtime.Object { return &corev1.Pod{} },
		func() runtime.Object { return &corev1.PodList{} },
	}
	Nodes = Resource{
		corev1.SchemeGroupVersion,
		"nodes",
		func() runtime.Object { return &corev1.Node{} },
		func() runtime.Object { return &corev1.NodeList{} },
	}
	ConfigMaps = Resource{
		corev1.SchemeGroupVersion,
		"configmaps",
		func() runtime.Object { return &corev1.ConfigMap{} },
		func() runtime.Object { return &corev1.ConfigMapList{} },
	}
	Secrets = Resource{
		corev1.SchemeGroupVersion,
		"secrets",
		func() runtime.Object { return &corev1.Secret{} },
		func() runtime.Object { return &corev1.SecretList{} },
	}
	// PersistentVolumeClaims and PersistentVolumes can be read one by one only.
	PersistentVolumeClaims = Resource{
		corev1.SchemeGroupVersion,
		"persistentvolumeclaims",
		func() runtime.Object { return &corev1.PersistentVolumeClaim{} },
		nil,
	}
	PersistentVolumes = Resource{
		corev1.SchemeGroupVersion,
		"persistentvolumes",
		func() runtime.Object { return &corev1.PersistentVolume{} },
		nil,
	}
	// CSINodes, CSIDrivers and VolumeAttachments are read one by one only.
	CSINodes = Resource{
		storagev1.SchemeGroupVersion,
		"csinodes",
		func() runtime.Object { return &storagev1.CSINode{} },
		nil,
	}
	CSIDrivers = Resource{
		storagev1.SchemeGroupVersion,
		"csidrivers",
		func() runtime.Object { return &storagev1.CSIDriver{} },
		nil,
	}
	VolumeAttachments = Resource{
		storagev1.SchemeGroupVersion,
		"volumeattachments",
		func() runtime.Object { return &storagev1.VolumeAttachment{} },
		nil,
	}
	Services = Resource{
		corev1.SchemeGroupVersion,
		"services",
		func() runtime.Object { return &corev1.Service{} },
		func() runtime.Object { return &corev1.ServiceList{} },
	}
	EndpointSlices = Resource{
		discoveryv1.SchemeGroupVersion,
		"endpointslices",
		func() runtime.Object { return &discoveryv1.EndpointSlice{} },
		func() runtime.Object { return &discoveryv1.EndpointSliceList{} },
	}
	Namespaces = Resource{
		corev1.SchemeGroupVersion,
		"namespaces",
		func() runtime.Object { return &corev1.Namespace{} },
		func() runtime.Object { return &corev1.NamespaceList{} },
	}
	NetworkPolicies = Resource{
		networkingv1.SchemeGroupVersion,
		"networkpolicies",
		func() runtime.Object { return &networkingv1.NetworkPolicy{} },
		func() runtime.Object { return &networkingv1.NetworkPolicyList{} },
	}
	// NetworkPolicyAddresses is served by berth-control only.
	NetworkPolicyAddresses = Resource{
		addressesv1.GroupVersion,
		addressesv1.Resource,
		func() runtime.Object { return &addressesv1.NetworkPolicyAddresses{} },
		func() runtime.Object { return &addressesv1.NetworkPolicyAddressesList{} },
	}
	ServiceAccounts = Resource{corev1.SchemeGroupVersion, "serviceaccounts", nil, nil} // for UID and tokens
	Events          = Resource{
		corev1.SchemeGroupVersion,
		"events",
		func() runtime.Object { return &corev1.Event{} },
		nil,
	}
	Leases = Resource{
		coordv1.SchemeGroupVersion,
		"leases",
		func() runtime.Object { return &coordv1.Lease{} },
		nil,
	}
	RuntimeClasses = Resource{
		nodev1.SchemeGroupVersion,
		"runtimeclasses",
		func() runtime.Object { return &nodev1.RuntimeClass{} },
		func() runtime.Object { return &nodev1.RuntimeClassList{} },
	}
	CertificateSigningRequests = Resource{
		certsv1.SchemeGroupVersion,
		"certificatesigningrequests",
		func() runtime.Object { return &certsv1.CertificateSigningRequest{} },
		func() runtime.Object { return &certsv1.CertificateSigningRequestList{} },
	}
	ClusterTrustBundles = Resource{
		certsv1.SchemeGroupVersion,
		"clustertrustbundles",
		func() runtime.Object { return &certsv1.ClusterTrustBundle{} },
		func() runtime.Object { return &certsv1.ClusterTrustBundleList{} },
	}
	PodCertificateRequests = Resource{
		certsv1.SchemeGroupVersion,
		"podcertificaterequests",
		func() runtime.Object { return &certsv1.PodCertificateRequest{} },
		func() runtime.Object { return &certsv1.PodCertificateRequestList{} },
	}
	TokenReviews         = Resource{authnv1.SchemeGroupVersion, "tokenreviews", nil, nil}
	SubjectAccessReviews = Resource{authzv1.SchemeGroupVersion, "subjectaccessreviews", nil, nil}
)

// newScheme registers only the types in use, because each type costs memory.
func newScheme() *runtime.Scheme {
	s := runtime.NewScheme()
	s.AddKnownTypes(
		corev1.SchemeGroupVersion,
		&corev1.Pod{},
		&corev1.PodList{},
		&corev1.Node{},
		&corev1.NodeList{},
		&corev1.ConfigMap{},
		&corev1.ConfigMapList{},
		&corev1.Secret{},
		&corev1.SecretList{},
		&corev1.Service{},
		&corev1.ServiceList{},
		&corev1.ServiceAccount{},
		&corev1.Namespace{},
		&corev1.NamespaceList{},
		&corev1.Event{},
		&corev1.EventList{},
	)
	s.AddKnownTypes(coordv1.SchemeGroupVersion, &coordv1.Lease{}, &coordv1.LeaseList{})
	s.AddKnownTypes(
		discoveryv1.SchemeGroupVersion, &discoveryv1.EndpointSlice{}, &discoveryv1.EndpointSliceList{},
	)
	s.AddKnownTypes(
		networkingv1.SchemeGroupVersion, &networkingv1.NetworkPolicy{}, &networkingv1.NetworkPolicyList{},
	)
	s.AddKnownTypes(
		addressesv1.GroupVersion, &addressesv1.NetworkPolicyAddresses{}, &addressesv1.NetworkPolicyAddressesList{},
	)
	s.AddKnownTypes(nodev1.SchemeGroupVersion, &nodev1.RuntimeClass{}, &nodev1.RuntimeClassList{})
	s.AddKnownTypes(
		certsv1.SchemeGroupVersion,
		&certsv1.CertificateSigningRequest{},
		&certsv1.CertificateSigningRequestList{},
		&certsv1.ClusterTrustBundle{},
		&certsv1.ClusterTrustBundleList{},
		&certsv1.PodCertificateRequest{},
		&certsv1.PodCertificateRequestList{},
	)
	s.AddKnownTypes(
		storagev1.SchemeGroupVersion, &storagev1.CSINode{}, &storagev1.CSIDriver{}, &storagev1.VolumeAttachment{},
	)
	s.AddKnownTypes(authnv1.SchemeGroupVersion, &authnv1.TokenRequest{}, &authnv1.TokenReview{})
	s.AddKnownTypes(authzv1.SchemeGroupVersion, &authzv1.SubjectAccessReview{})
	for _, gv := range []schema.GroupVersion{
		corev1.SchemeGroupVersion, discoveryv1.SchemeGroupVersion, networkingv1.SchemeGroupVersion,
		coordv1.SchemeGroupVersion, nodev1.SchemeGroupVersion,
		certsv1.SchemeGroupVersion, authnv1.SchemeGroupVersion, authzv1.SchemeGroupVersion,
		addressesv1.GroupVersion, storagev1.SchemeGroupVersion,
	} {
		metav1.AddToGroupVersion(s, gv)
	}
	return s
}

// wire returns the codecs. They are created on first use.
var wire = sync.OnceValues(func() (serializer.CodecFactory, runtime.ParameterCodec) {
	s := newScheme()
	return serializer.NewCodecFactory(s), runtime.NewParameterCodec(s)
})
