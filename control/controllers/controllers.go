package controllers

import (
	"context"
	"crypto"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apiextensionsclient "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset/typed/apiextensions/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"

	"berth/control/loadbalancer"
	"berth/control/pki"
)

// Config holds the dependencies and settings of the controllers. A zero duration selects upstream's
// default.
type Config struct {
	Client         kubernetes.Interface
	Metadata       metadata.Interface
	Informers      informers.SharedInformerFactory
	StartInformers func() // starts informers that are not running yet
	Events         record.EventRecorder
	Log            *slog.Logger

	// ClusterCIDRs are divided into one pod CIDR per node: a /24 (IPv4) or a /64 (IPv6). If empty,
	// nodes get no pod CIDR.
	ClusterCIDRs []netip.Prefix
	// ClientCA signs client certificates. ServingCA signs the serving certificates of nodes and
	// must differ from ClientCA, because a node must not be able to impersonate the API server. If
	// either is nil, no certificates are signed.
	ClientCA, ServingCA CertificateAuthority
	SigningDuration     time.Duration // longest lifetime of issued certificates; default 1 year
	// PodCA signs the certificates of pods, which it does not share with any other authority. PodCABundle verifies
	// them.
	// If nil, they are not signed.
	PodCA       CertificateAuthority
	PodCABundle []byte
	// CABundle is the PEM bundle with which pods verify the API server. If empty, it is not
	// published.
	CABundle []byte
	// TokenSigner signs the tokens stored in secrets. If nil, those secrets are not changed.
	TokenSigner TokenSigner

	// LoadBalancerPool has the addresses for Services of type LoadBalancer. If empty, they get the
	// addresses of nodes, except the port of the API server.
	LoadBalancerPool loadbalancer.Pool
	APIServerPort    uint16

	// CustomResources are the kinds of CustomResourceDefinitions. If nil, there are none.
	CustomResources CustomResources
	// AggregatedKinds are the kinds of extension API servers. If nil, there are none.
	AggregatedKinds AggregatedKinds

	// Definitions is the client of CustomResourceDefinitions. If nil, there are none.
	Definitions apiextensionsclient.CustomResourceDefinitionInterface

	// PolicyTypes checks the types in the expressions of ValidatingAdmissionPolicies. If nil, they are not checked.
	PolicyTypes PolicyTypeChecker

	// NodeVolumes calls nodes for the volumes of the class local. If nil, there are none.
	NodeVolumes NodeVolumes

	// Autoscaling is what the controller HorizontalPodAutoscalers needs.
	Autoscaling Autoscaling

	NodeMonitorGracePeriod   time.Duration // time without heartbeat after which a node is unreachable; default 40 s
	TerminatedPodGCThreshold int           // number of terminated pods to retain; default 12500

	queueName string         // of work queues, in metrics
	created   *[]*controller // gets the controllers that are created
}

// CertificateAuthority signs certificates. It is implemented by pki.Authority.
type CertificateAuthority interface {
	Sign(key crypto.PublicKey, subject pki.Subject) (pem []byte, err error)
}

// The controllers carry upstream's names: a controller that is disabled here can be replaced by the
// one of the same name in kube-controller-manager.
const (
	NodeLifecycle          = "node-lifecycle-controller"
	TaintEviction          = "taint-eviction-controller"
	NodeIPAM               = "node-ipam-controller"
	Namespaces             = "namespace-controller"
	GarbageCollector       = "garbage-collector-controller"
	ServiceAccounts        = "serviceaccount-controller"
	ServiceAccountTokens   = "serviceaccount-token-controller"
	RootCA                 = "root-ca-certificate-publisher-controller"
	CSRApproving           = "certificatesigningrequest-approving-controller"
	CSRSigning             = "certificatesigningrequest-signing-controller"
	CSRCleaner             = "certificatesigningrequest-cleaner-controller"
	PodCertificateCleaner  = "podcertificaterequest-cleaner-controller"
	ServingTrustBundle     = "kube-apiserver-serving-clustertrustbundle-publisher-controller"
	PodGC                  = "pod-garbage-collector-controller"
	ResourceQuota          = "resourcequota-controller"
	Disruption             = "disruption-controller"
	Endpoints              = "endpoints-controller"
	EndpointSlices         = "endpointslice-controller"
	EndpointSliceMirroring = "endpointslice-mirroring-controller"
	Deployments            = "deployment-controller"
	Jobs                   = "job-controller"
	CronJobs               = "cronjob-controller"
	TTLAfterFinished       = "ttl-after-finished-controller"
	ReplicaSets            = "replicaset-controller"
	StatefulSets           = "statefulset-controller"
	DaemonSets             = "daemonset-controller"
	// PodCertificateSigning signs certificates for pods. Upstream has no such controller.
	PodCertificateSigning = "pod-certificate-signing-controller"
	// ServiceLB is the controller of Services of type LoadBalancer.
	ServiceLB = "service-lb-controller"
	// ValidatingAdmissionPolicyStatus is the controller of the status of ValidatingAdmissionPolicies.
	ValidatingAdmissionPolicyStatus = "validatingadmissionpolicy-status-controller"
	// HorizontalPodAutoscalers is the controller of the kind HorizontalPodAutoscaler.
	HorizontalPodAutoscalers = "horizontal-pod-autoscaler-controller"
	// ReplicationControllers is the controller of the kind ReplicationController.
	ReplicationControllers = "replicationcontroller-controller"
	// VolumeBinder binds PersistentVolumeClaims.
	VolumeBinder = "persistentvolume-binder-controller"
	// ClaimProtection, VolumeProtection and VolumeAttributesClassProtection keep claims, volumes and classes that are
	// in use.
	ClaimProtection                 = "persistentvolumeclaim-protection-controller"
	VolumeProtection                = "persistentvolume-protection-controller"
	VolumeAttributesClassProtection = "volumeattributesclass-protection-controller"
	// AttachDetach attaches the volumes of CSI drivers to nodes and detaches them.
	AttachDetach = "persistentvolume-attach-detach-controller"
	// EphemeralVolumes creates the claims of generic ephemeral volumes.
	EphemeralVolumes = "ephemeral-volume-controller"
	// LocalVolumeProvisioner provisions the volumes of the class local. Upstream has no such controller.
	LocalVolumeProvisioner = "local-volume-provisioner-controller"
	// StorageVersionMigrator writes the objects of a resource again.
	StorageVersionMigrator = "storage-version-migrator-controller"
)

// DefaultTerminatedPodGCThreshold is the default number of terminated pods to retain.
const DefaultTerminatedPodGCThreshold = 12500

const (
	defaultNodeMonitorGracePeriod = 40 * time.Second
	// Indexes of the shared pod informer.
	nodeIndex       = "node"
	controllerIndex = "controller" // controller UID, or orphanKey of the namespace
)

// descriptor is the registration of a controller. newFunc returns no controllers if the
// configuration disables it.
type descriptor struct {
	name    string
	newFunc func(Config) ([]*controller, error)
}

var descriptors = []descriptor{
	{NodeLifecycle, newNodeLifecycleController},
	{TaintEviction, newTaintEvictionController},
	{NodeIPAM, newNodeIPAMController},
	{Namespaces, newNamespaceController},
	{GarbageCollector, newGarbageCollectorController},
	{ServiceAccounts, newServiceAccountController},
	{ServiceAccountTokens, newServiceAccountTokenController},
	{RootCA, newRootCAController},
	{CSRApproving, newCSRApprovingController},
	{CSRSigning, newCSRSigningController},
	{CSRCleaner, newCSRCleanerController},
	{PodCertificateCleaner, newPodCertificateCleaner},
	{PodCertificateSigning, newPodCertificateSigner},
	{ServingTrustBundle, newServingTrustBundleController},
	{PodGC, newPodGCController},
	{ResourceQuota, newResourceQuotaController},
	{Disruption, newDisruptionController},
	{Endpoints, newEndpointsController},
	{EndpointSlices, newEndpointSliceController},
	{EndpointSliceMirroring, newEndpointSliceMirroringController},
	{ServiceLB, newServiceLBController},
	{Deployments, newDeploymentController},
	{Jobs, newJobController},
	{CronJobs, newCronJobController},
	{TTLAfterFinished, newTTLAfterFinishedController},
	{ReplicaSets, newReplicaSetController},
	{ReplicationControllers, newReplicationControllerController},
	{StatefulSets, newStatefulSetController},
	{DaemonSets, newDaemonSetController},
	{HorizontalPodAutoscalers, newAutoscalerController},
	{VolumeBinder, newVolumeBinder},
	{ClaimProtection, newClaimProtectionController},
	{VolumeProtection, newVolumeProtectionController},
	{VolumeAttributesClassProtection, newAttributesClassProtectionController},
	{AttachDetach, newAttachDetachController},
	{EphemeralVolumes, newEphemeralVolumeController},
	{ValidatingAdmissionPolicyStatus, newPolicyStatusController},
	{StorageVersionMigrator, newStorageMigrator},
	{LocalVolumeProvisioner, newLocalProvisioner},
}

// Names returns the names of all controllers, sorted.
func Names() []string {
	out := make([]string, 0, len(descriptors))
	for _, k := range descriptors {
		out = append(out, k.name)
	}
	slices.Sort(out)
	return out
}

// EventSource returns the event source of a controller, as upstream has it.
func EventSource(name string) string {
	switch name {
	case NodeLifecycle:
		return "node-controller"
	case ReplicationControllers:
		return "replication-controller"
	case HorizontalPodAutoscalers:
		return "horizontal-pod-autoscaler"
	case ServiceLB:
		return "service-controller"
	case VolumeBinder:
		return "persistentvolume-controller"
	case EphemeralVolumes:
		return "ephemeral_volume"
	case AttachDetach:
		return "attachdetach-controller"
	}
	return name
}

// serviceAccounts holds the service accounts of the controllers whose names differ from the controller's.
var serviceAccounts = map[string]string{
	NodeLifecycle: "node-controller", NodeIPAM: "node-controller", GarbageCollector: "generic-garbage-collector",
	ServiceAccounts: "service-account-controller", ServiceAccountTokens: "", RootCA: "root-ca-cert-publisher",
	CSRApproving: "certificate-controller", CSRSigning: "certificate-controller",
	CSRCleaner: "certificate-controller", PodGC: "pod-garbage-collector", Endpoints: "endpoint-controller",
	EndpointSliceMirroring: "endpointslicemirroring-controller", ReplicationControllers: "replication-controller",
	DaemonSets: "daemon-set-controller", HorizontalPodAutoscalers: "horizontal-pod-autoscaler",
	ServiceLB: "service-controller", PodCertificateCleaner: "podcertificaterequestcleaner",
	ServingTrustBundle: "kube-apiserver-serving-clustertrustbundle-publisher", VolumeBinder: "persistent-volume-binder",
	ClaimProtection: "pvc-protection-controller", VolumeProtection: "pv-protection-controller",
	AttachDetach: "attachdetach-controller",
}

// ServiceAccount returns the name of the service account in kube-system that a controller has in upstream's control
// plane. It is empty for a controller that acts as system:kube-controller-manager.
func ServiceAccount(name string) string {
	if account, differs := serviceAccounts[name]; differs {
		return account
	}
	return name
}

// queueNames holds the names of work queues that do not follow from the controller's name.
var queueNames = map[string]string{
	NodeLifecycle: "node_lifecycle_controller", TaintEviction: "noexec_taint_node", NodeIPAM: "node_ipam",
	GarbageCollector: "garbage_collector_attempt_to_delete", ServiceAccountTokens: "serviceaccount_tokens_secret",
	RootCA: "root_ca_cert_publisher", CSRApproving: "certificate", CSRSigning: "certificate", CSRCleaner: "certificate",
	ServingTrustBundle: "ca_cert_publisher_cluster_trust_bundles",
	PodGC:              "orphaned_pods_nodes", ResourceQuota: "resourcequota_primary", EndpointSlices: "endpoint_slice",
	EndpointSliceMirroring: "endpoint_slice_mirroring", ReplicationControllers: "replicationmanager",
	TTLAfterFinished: "ttl_jobs_to_delete", HorizontalPodAutoscalers: "horizontalpodautoscaler", ServiceLB: "service",
	VolumeBinder: "claims", ClaimProtection: "pvcprotection", VolumeProtection: "pvprotection",
	VolumeAttributesClassProtection: "vacprotection", EphemeralVolumes: "ephemeral_volume",
	StorageVersionMigrator: StorageVersionMigrator,
}

// queueName returns the name of a controller's work queue in metrics, as upstream has it.
func queueName(name string) string {
	if queue, differs := queueNames[name]; differs {
		return queue
	}
	return strings.TrimSuffix(name, "-controller")
}

// Run runs the named controller until ctx is done. It applies the defaults of Config.
func Run(ctx context.Context, name string, c Config) error {
	i := slices.IndexFunc(descriptors, func(k descriptor) bool { return k.name == name })
	if i < 0 {
		return fmt.Errorf("unknown controller %q, known controllers: %v", name, Names())
	}
	if c.NodeMonitorGracePeriod == 0 {
		c.NodeMonitorGracePeriod = defaultNodeMonitorGracePeriod
	}
	if c.TerminatedPodGCThreshold == 0 {
		c.TerminatedPodGCThreshold = DefaultTerminatedPodGCThreshold
	}
	registerMetrics()
	c.Log, c.queueName = c.Log.With("controller", name), queueName(name)
	var created []*controller
	c.created = &created
	workers, err := descriptors[i].newFunc(c)
	if err != nil { // for example because the informers have stopped
		for _, w := range created {
			w.queue.ShutDown()
		}
		return fmt.Errorf("create controller %s: %w", name, err)
	}
	c.StartInformers()
	var wg sync.WaitGroup
	for _, w := range workers {
		wg.Go(func() { w.run(ctx) })
	}
	wg.Wait()
	<-ctx.Done() // a controller with nothing to do has not failed
	return nil
}

// indexMu serializes addIndex: reading and adding the indexers of an informer is not safe for
// concurrent use.
var indexMu sync.Mutex

// addIndex adds an index to a shared informer unless it has one of this name.
func addIndex(informer cache.SharedIndexInformer, name string, keys cache.IndexFunc) error {
	indexMu.Lock()
	defer indexMu.Unlock()
	if _, done := informer.GetIndexer().GetIndexers()[name]; done {
		return nil
	}
	if err := informer.AddIndexers(cache.Indexers{name: keys}); err != nil {
		return fmt.Errorf("add index %s: %w", name, err)
	}
	return nil
}

// indexPods adds the indexes used by podsOn and podsByIndex to the shared pod informer. It is
// idempotent.
func (c Config) indexPods() error {
	pods := c.Informers.Core().V1().Pods().Informer()
	if err := indexByController(pods); err != nil {
		return err
	}
	return addIndex(pods, nodeIndex, func(obj any) ([]string, error) {
		if pod, ok := obj.(*corev1.Pod); ok && pod.Spec.NodeName != "" {
			return []string{pod.Spec.NodeName}, nil
		}
		return nil, nil
	})
}

// orphanKey is the key in controllerIndex of the pods of a namespace that have no controller.
func orphanKey(namespace string) string { return "none in " + namespace }

// podsOn returns the pods bound to a node.
func (c Config) podsOn(name string) []*corev1.Pod { return c.podsByIndex(nodeIndex, name) }

// podsByIndex returns the pods with the given key in an index.
func (c Config) podsByIndex(index, key string) []*corev1.Pod {
	list, err := c.Informers.Core().V1().Pods().Informer().GetIndexer().ByIndex(index, key)
	if err != nil {
		return nil // indexPods has added the index
	}
	out := make([]*corev1.Pod, 0, len(list))
	for _, obj := range list {
		if pod, ok := obj.(*corev1.Pod); ok {
			out = append(out, pod)
		}
	}
	return out
}
