package serviceips

import (
	"context"
	"log/slog"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes"
)

// dnsName is the Service of the cluster's DNS, as in every Kubernetes cluster.
const dnsName = "kube-dns"

// DNSService creates the Service kube-system/kube-dns if it does not exist. Its cluster IP is the
// address on which the node agents answer DNS queries. An existing Service of the name is never
// changed, so that a user can run another DNS server for the cluster.
type DNSService struct {
	Client kubernetes.Interface
	Ranges Ranges
	Log    *slog.Logger
}

// Run creates the Service again when it has been deleted, until ctx is done.
func (d *DNSService) Run(ctx context.Context) error {
	syncUntilDone(ctx, d.Log.With("service", metav1.NamespaceSystem+"/"+dnsName), d.Sync)
	return nil
}

// syncUntilDone calls sync at every period until ctx is done. Each failure is logged once.
func syncUntilDone(ctx context.Context, log *slog.Logger, sync func(context.Context) error) {
	failed := ""
	for {
		next := syncPeriod
		switch err := sync(ctx); {
		case err == nil || ctx.Err() != nil:
			failed = ""
		case apierrors.IsNotFound(err): // the namespace is created concurrently at the first start
			next = namespaceRetryDelay
		case err.Error() != failed:
			failed = err.Error()
			log.Warn("object write failed; retrying", "err", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(next):
		}
	}
}

// Sync creates the Service if it does not exist.
func (d *DNSService) Sync(ctx context.Context) error {
	services := d.Client.CoreV1().Services(metav1.NamespaceSystem)
	_, err := services.Get(ctx, dnsName, metav1.GetOptions{})
	if !apierrors.IsNotFound(err) {
		return err
	}
	_, err = services.Create(ctx, d.desired(), metav1.CreateOptions{})
	return ignoreConcurrentWrite(err)
}

// desired returns the Service. It selects the pods that usually run the cluster's DNS, so that
// network policies and proxies that refer to them work.
func (d *DNSService) desired() *corev1.Service {
	port := func(name string, protocol corev1.Protocol) corev1.ServicePort {
		return corev1.ServicePort{Name: name, Protocol: protocol, Port: 53, TargetPort: intstr.FromInt32(53)}
	}
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: metav1.NamespaceSystem, Name: dnsName,
			Labels: map[string]string{
				"k8s-app": dnsName, "kubernetes.io/cluster-service": "true", "kubernetes.io/name": "KubeDNS",
				// The address is local to each node: service proxies leave it alone.
				"service.kubernetes.io/service-proxy-name": "berth-dns",
			},
		},
		Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeClusterIP, ClusterIP: d.Ranges.DNSServiceIP().String(),
			Selector: map[string]string{"k8s-app": dnsName},
			Ports:    []corev1.ServicePort{port("dns", corev1.ProtocolUDP), port("dns-tcp", corev1.ProtocolTCP)},
		},
	}
}
