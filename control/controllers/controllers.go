package controllers

import (
	"cmp"
	"context"
	"crypto"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"

	"berth/control/pki"
)

// Config is what the controllers need. Times that are zero are upstream's.
type Config struct {
	Client         kubernetes.Interface
	Metadata       metadata.Interface
	Informers      informers.SharedInformerFactory
	StartInformers func() // starts the informers that are not started yet
	Events         record.EventRecorder
	Log            *slog.Logger

	// ClusterCIDRs are cut into one range of addresses per node: of 2^8 addresses
	// (IPv4) or 2^64 (IPv6). None: nodes get no range.
	ClusterCIDRs []netip.Prefix
	// ClientCA signs the certificates of clients, and NodesCA those that nodes show, which must
	// not be good for taking a node for the server. Nil: none are signed.
	ClientCA, ServingCA CertificateAuthority
	SigningDuration     time.Duration // that these sign are good for at most; a year
	// CABundle is the PEM by which pods know the server. Empty: not published.
	CABundle []byte
	// TokenSigner signs those of secrets. Nil: such secrets stay as they are.
	TokenSigner TokenSigner

	NodeMonitorGracePeriod   time.Duration // silence after which a node is lost; 40 s
	TerminatedPodGCThreshold int           // ended pods that may stay; 12500
}

// CertificateAuthority signs certificates; pki has one.
type CertificateAuthority interface {
	Sign(key crypto.PublicKey, subject pki.Subject) (pem []byte, err error)
}

// The names of the controllers are upstream's, so that whoever turns one off
// knows which one of kube-controller-manager takes its place.
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
	PodGC                  = "pod-garbage-collector-controller"
	ResourceQuota          = "resourcequota-controller"
	Disruption             = "disruption-controller"
	Endpoints              = "endpoints-controller"
	EndpointSlices         = "endpointslice-controller"
	EndpointSliceMirroring = "endpointslice-mirroring-controller"
	ReplicaSets            = "replicaset-controller"
	// ReplicationControllers keeps the kind of that name.
	ReplicationControllers = "replicationcontroller-controller"
)

const (
	defaultNodeMonitorGracePeriod   = 40 * time.Second
	defaultTerminatedPodGCThreshold = 12500
	// Indexes of the shared pod informer.
	nodeIndex       = "node"
	controllerIndex = "controller" // a UID, or uncontrolled
)

// descriptor is one controller: its name and what makes it.
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
	{PodGC, newPodGCController},
	{ResourceQuota, newResourceQuotaController},
	{Disruption, newDisruptionController},
	{Endpoints, newEndpointsController},
	{EndpointSlices, newEndpointSliceController},
	{EndpointSliceMirroring, newEndpointSliceMirroringController},
	{ReplicaSets, newReplicaSetController},
	{ReplicationControllers, newReplicationControllerController},
}

// Names are all controllers, in order.
func Names() []string {
	out := make([]string, 0, len(descriptors))
	for _, k := range descriptors {
		out = append(out, k.name)
	}
	slices.Sort(out)
	return out
}

// Run is the controller of that name until the context ends.
func Run(ctx context.Context, name string, c Config) error {
	i := slices.IndexFunc(descriptors, func(k descriptor) bool { return k.name == name })
	if i < 0 {
		return fmt.Errorf("there is no controller %q; there are %v", name, Names())
	}
	if c.NodeMonitorGracePeriod == 0 {
		c.NodeMonitorGracePeriod = defaultNodeMonitorGracePeriod
	}
	if c.TerminatedPodGCThreshold == 0 {
		c.TerminatedPodGCThreshold = defaultTerminatedPodGCThreshold
	}
	c.Log = c.Log.With("controller", name)
	workers, err := descriptors[i].newFunc(c)
	if err != nil {
		return fmt.Errorf("make %s: %w", name, err)
	}
	c.StartInformers()
	var wg sync.WaitGroup
	for _, w := range workers {
		wg.Go(func() { w.run(ctx) })
	}
	wg.Wait()
	<-ctx.Done() // one that has nothing to do has not failed
	return nil
}

// indexMu orders the controllers that index the pods they share: an informer's
// indexers may be read or added to by one at a time.
var indexMu sync.Mutex

// indexPods lets podsOn find the pods of a node, and indexed those of a controller.
func (c Config) indexPods() error {
	indexMu.Lock()
	defer indexMu.Unlock()
	pods := c.Informers.Core().V1().Pods().Informer()
	if _, done := pods.GetIndexer().GetIndexers()[nodeIndex]; done {
		return nil
	}
	err := pods.AddIndexers(cache.Indexers{nodeIndex: func(obj any) ([]string, error) {
		if pod, ok := obj.(*corev1.Pod); ok && pod.Spec.NodeName != "" {
			return []string{pod.Spec.NodeName}, nil
		}
		return nil, nil
	}, controllerIndex: func(obj any) ([]string, error) {
		pod, ok := obj.(*corev1.Pod)
		if !ok {
			return nil, nil
		}
		return []string{cmp.Or(string(controllerOf(pod)), orphanKey(pod.Namespace))}, nil
	}})
	if err != nil {
		return fmt.Errorf("index pods: %w", err)
	}
	return nil
}

// orphanKey is where byController has the pods of a namespace that nothing controls.
func orphanKey(namespace string) string { return "none in " + namespace }

// podsOn gives the pods that are bound to a node.
func (c Config) podsOn(name string) []*corev1.Pod { return c.podsByIndex(nodeIndex, name) }

// podsByIndex gives the pods that an index has under a key.
func (c Config) podsByIndex(index, key string) []*corev1.Pod {
	list, err := c.Informers.Core().V1().Pods().Informer().GetIndexer().ByIndex(index, key)
	if err != nil {
		return nil // indexPods made the index
	}
	out := make([]*corev1.Pod, 0, len(list))
	for _, obj := range list {
		if pod, ok := obj.(*corev1.Pod); ok {
			out = append(out, pod)
		}
	}
	return out
}
