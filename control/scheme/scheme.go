package scheme

import (
	"fmt"
	"strings"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	batchv1 "k8s.io/api/batch/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	eventsv1 "k8s.io/api/events/v1"
	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	networkingv1 "k8s.io/api/networking/v1"
	nodev1 "k8s.io/api/node/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	resourcev1 "k8s.io/api/resource/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	storagev1 "k8s.io/api/storage/v1"
	storagemigrationv1 "k8s.io/api/storagemigration/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apiserver/pkg/endpoints/openapi"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	metricsv1beta1 "k8s.io/metrics/pkg/apis/metrics/v1beta1"

	addressesv1 "berth/services/policy/addresses/v1"
)

// groups lists the API groups in discovery order. The first version of a group is the preferred one, and the one in
// which its objects are stored.
var groups = []struct {
	version schema.GroupVersion
	add     func(*runtime.Scheme) error
}{
	{corev1.SchemeGroupVersion, corev1.AddToScheme},
	{appsv1.SchemeGroupVersion, appsv1.AddToScheme},
	{eventsv1.SchemeGroupVersion, eventsv1.AddToScheme},
	{admissionregistrationv1.SchemeGroupVersion, admissionregistrationv1.AddToScheme},
	{authenticationv1.SchemeGroupVersion, authenticationv1.AddToScheme},
	{authorizationv1.SchemeGroupVersion, authorizationv1.AddToScheme},
	{autoscalingv2.SchemeGroupVersion, autoscalingv2.AddToScheme},
	{autoscalingv1.SchemeGroupVersion, autoscalingv1.AddToScheme},
	{batchv1.SchemeGroupVersion, batchv1.AddToScheme},
	{certificatesv1.SchemeGroupVersion, certificatesv1.AddToScheme},
	{coordinationv1.SchemeGroupVersion, coordinationv1.AddToScheme},
	{discoveryv1.SchemeGroupVersion, discoveryv1.AddToScheme},
	{flowcontrolv1.SchemeGroupVersion, flowcontrolv1.AddToScheme},
	{networkingv1.SchemeGroupVersion, networkingv1.AddToScheme},
	{nodev1.SchemeGroupVersion, nodev1.AddToScheme},
	{policyv1.SchemeGroupVersion, policyv1.AddToScheme},
	{rbacv1.SchemeGroupVersion, rbacv1.AddToScheme},
	{resourcev1.SchemeGroupVersion, resourcev1.AddToScheme},
	{schedulingv1.SchemeGroupVersion, schedulingv1.AddToScheme},
	{storagev1.SchemeGroupVersion, storagev1.AddToScheme},
	{storagemigrationv1.SchemeGroupVersion, storagemigrationv1.AddToScheme},
	{metricsv1beta1.SchemeGroupVersion, metricsv1beta1.AddToScheme},
	{addressesv1.GroupVersion, addressesv1.AddToScheme},
}

// Set is a scheme with its codecs.
type Set struct {
	*runtime.Scheme
	Codecs         serializer.CodecFactory
	ParameterCodec runtime.ParameterCodec
	// StorageCodec encodes objects as protobuf in their published version.
	StorageCodec runtime.Codec
	// StorageVersioner is the version of StorageCodec.
	StorageVersioner runtime.GroupVersioner
}

// GroupVersions returns the group versions of the API in discovery order.
func GroupVersions() []schema.GroupVersion {
	out := make([]schema.GroupVersion, len(groups))
	for i, g := range groups {
		out[i] = g.version
	}
	return out
}

// New creates the scheme of the API. The caller adds defaulting functions and field labels before
// its first use.
func New() *Set {
	s := runtime.NewScheme()
	metav1.AddToGroupVersion(s, schema.GroupVersion{Version: "v1"})
	s.AddUnversionedTypes(schema.GroupVersion{Version: "v1"},
		&metav1.Status{}, &metav1.APIVersions{}, &metav1.APIGroupList{}, &metav1.APIGroup{}, &metav1.APIResourceList{})
	for _, g := range groups {
		utilruntime.Must(g.add(s))
		utilruntime.Must(s.SetVersionPriority(versionsOf(g.version.Group)...))
		addInternal(s, g.version)
	}
	addEvents(s)
	addAutoscalers(s)
	addConnectOptions(s)
	addCopies(s)

	codecs := serializer.NewCodecFactory(s)
	versions := schema.GroupVersions(GroupVersions())
	return &Set{
		Scheme:         s,
		Codecs:         codecs,
		ParameterCodec: runtime.NewParameterCodec(s),
		StorageCodec: codecs.CodecForVersions(
			protobuf.NewSerializer(s, s),
			codecs.UniversalDeserializer(),
			versions,
			runtime.InternalGroupVersioner,
		),
		StorageVersioner: versions,
	}
}

// versionsOf returns the versions of a group in the order of preference.
func versionsOf(group string) (out []schema.GroupVersion) {
	for _, g := range groups {
		if g.version.Group == group {
			out = append(out, g.version)
		}
	}
	return out
}

// addInternal registers the types of a group under the internal version too. Of a kind with several versions, the type
// of the preferred one is the internal one.
func addInternal(s *runtime.Scheme, version schema.GroupVersion) {
	internal := schema.GroupVersion{Group: version.Group, Version: runtime.APIVersionInternal}
	for kind, goType := range s.KnownTypes(version) {
		if strings.HasPrefix(goType.PkgPath(), "k8s.io/apimachinery/") || version.Group == eventsv1.GroupName {
			continue
		}
		if s.Recognizes(internal.WithKind(kind)) {
			continue
		}
		object, err := s.New(version.WithKind(kind))
		if err != nil {
			panic(fmt.Sprintf("scheme: create a %s: %v", version.WithKind(kind), err))
		}
		s.AddKnownTypeWithName(internal.WithKind(kind), object)
	}
}

// DefinitionNamer returns the namer of the OpenAPI definitions. It uses a scheme without the
// internal versions, which would otherwise be visible to clients.
func DefinitionNamer() *openapi.DefinitionNamer {
	s := runtime.NewScheme()
	metav1.AddToGroupVersion(s, schema.GroupVersion{Version: "v1"})
	for _, g := range groups {
		utilruntime.Must(g.add(s))
	}
	utilruntime.Must(apiextensionsv1.AddToScheme(s))   // served by package customresources, with another scheme
	utilruntime.Must(apiregistrationv1.AddToScheme(s)) // served by package aggregation, with another scheme
	return openapi.NewDefinitionNamer(s)
}
