package serviceips

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes"
)

const (
	kubernetesName = "kubernetes"
	// masterLeasePrefix is the etcd key prefix of the servers' leases, as in kube-apiserver.
	masterLeasePrefix = "/registry/masterleases/"
	// formerAnnotation is an annotation of earlier releases on default/kubernetes. It is removed.
	formerAnnotation = "berth.dev/reached-at"

	leaseTTL            = 15 * time.Second
	syncPeriod          = 10 * time.Second
	namespaceRetryDelay = 50 * time.Millisecond
	unpublishTimeout    = 2 * time.Second
)

// KubernetesService maintains the Service default/kubernetes and its endpoints, which are all live
// servers. Each server runs one.
type KubernetesService struct {
	Etcd   *clientv3.Client
	Client kubernetes.Interface
	Ranges Ranges
	// Address is where this server is reached. It is not valid if it is reachable from its host
	// only.
	Address netip.AddrPort
	Log     *slog.Logger
}

// Run syncs until ctx is done, and then removes this server from the endpoints of the other
// servers.
func (k *KubernetesService) Run(ctx context.Context) error {
	if !k.Address.IsValid() {
		k.Log.Warn("server not reachable for pods: no address except loopback", "flag", "advertise-address")
	}
	defer k.unpublish(ctx)
	for {
		next := syncPeriod
		switch err := k.Sync(ctx); {
		case err == nil || ctx.Err() != nil:
		case apierrors.IsNotFound(err): // the namespace is created concurrently at the first start
			next = namespaceRetryDelay
		default:
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(next):
		}
	}
}

// Sync renews the lease of this server and updates the objects.
func (k *KubernetesService) Sync(ctx context.Context) error {
	if err := k.publish(ctx); err != nil {
		return err
	}
	servers, err := k.servers(ctx)
	if err != nil {
		return err
	}
	if err := k.syncService(ctx, servers); err != nil {
		return fmt.Errorf("service default/kubernetes: %w", err)
	}
	if err := k.syncEndpoints(ctx, servers); err != nil {
		return fmt.Errorf("endpoints default/kubernetes: %w", err)
	}
	if err := k.syncEndpointSlice(ctx, servers); err != nil {
		return fmt.Errorf("endpoint slice default/kubernetes: %w", err)
	}
	return nil
}

func (k *KubernetesService) key() string { return masterLeasePrefix + k.Address.Addr().String() }

// publish writes the address of this server with a lease.
func (k *KubernetesService) publish(ctx context.Context) error {
	if !k.Address.IsValid() {
		return nil
	}
	lease, err := k.Etcd.Grant(ctx, int64(leaseTTL.Seconds()))
	if err != nil {
		return fmt.Errorf("renew server lease: %w", err)
	}
	_, err = k.Etcd.Put(ctx, k.key(), strconv.Itoa(int(k.Address.Port())), clientv3.WithLease(lease.ID))
	if err != nil {
		return fmt.Errorf("renew server lease: %w", err)
	}
	return nil
}

func (k *KubernetesService) unpublish(ctx context.Context) {
	if !k.Address.IsValid() {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), unpublishTimeout)
	defer cancel()
	if _, err := k.Etcd.Delete(ctx, k.key()); err != nil {
		k.Log.Debug("server lease not removed", "err", err)
	}
}

// servers returns all live servers in order.
func (k *KubernetesService) servers(ctx context.Context) ([]netip.AddrPort, error) {
	got, err := k.Etcd.Get(ctx, masterLeasePrefix, clientv3.WithPrefix())
	if err != nil {
		return nil, fmt.Errorf("list server leases: %w", err)
	}
	var out []netip.AddrPort
	for _, kv := range got.Kvs {
		a, err := netip.ParseAddrPort(netJoin(strings.TrimPrefix(string(kv.Key), masterLeasePrefix), string(kv.Value)))
		if err == nil {
			out = append(out, a)
		}
	}
	slices.SortFunc(out, netip.AddrPort.Compare)
	return out, nil
}

func netJoin(host, port string) string {
	if strings.Contains(host, ":") {
		host = "[" + host + "]"
	}
	return host + ":" + port
}

// syncService creates or updates the Service.
func (k *KubernetesService) syncService(ctx context.Context, servers []netip.AddrPort) error {
	services := k.Client.CoreV1().Services(metav1.NamespaceDefault)
	want := k.desiredService(servers)
	have, err := services.Get(ctx, kubernetesName, metav1.GetOptions{})
	if err == nil && have.Spec.ClusterIP != want.Spec.ClusterIP {
		// The range has changed, and a cluster IP is immutable.
		if err := services.Delete(ctx, kubernetesName,
			metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &have.UID}}); err != nil &&
			!apierrors.IsNotFound(err) {
			return err
		}
		err = apierrors.NewNotFound(corev1.Resource("services"), kubernetesName)
	}
	if apierrors.IsNotFound(err) {
		_, err = services.Create(ctx, want, metav1.CreateOptions{})
		return ignoreConcurrentWrite(err)
	}
	if err != nil {
		return err
	}
	next := have.DeepCopy()
	delete(next.Annotations, formerAnnotation)
	merge(&next.Labels, want.Labels)
	next.Spec.Ports, next.Spec.Type, next.Spec.Selector = want.Spec.Ports, want.Spec.Type, nil
	if equality.Semantic.DeepEqual(have, next) {
		return nil
	}
	_, err = services.Update(ctx, next, metav1.UpdateOptions{})
	return ignoreConcurrentWrite(err)
}

func merge(to *map[string]string, from map[string]string) {
	if *to == nil {
		*to = map[string]string{}
	}
	maps.Copy(*to, from)
}

// desiredService returns the desired Service.
func (k *KubernetesService) desiredService(servers []netip.AddrPort) *corev1.Service {
	port := int32(443)
	target := int32(6443)
	if k.Address.IsValid() {
		target = int32(k.Address.Port())
	} else if len(servers) > 0 {
		target = int32(servers[0].Port())
	}
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: metav1.NamespaceDefault, Name: kubernetesName,
			Labels: map[string]string{"component": "apiserver", "provider": "kubernetes"},
		},
		Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeClusterIP, SessionAffinity: corev1.ServiceAffinityNone,
			ClusterIP: k.Ranges.KubernetesServiceIP().String(),
			Ports: []corev1.ServicePort{
				{Name: "https", Protocol: corev1.ProtocolTCP, Port: port, TargetPort: intstr.FromInt32(target)},
			},
		},
	}
}

func (k *KubernetesService) syncEndpoints(ctx context.Context, servers []netip.AddrPort) error {
	endpoints := k.Client.CoreV1().Endpoints(metav1.NamespaceDefault)
	byPort := map[int32][]corev1.EndpointAddress{}
	for _, s := range servers {
		byPort[int32(s.Port())] = append(byPort[int32(s.Port())], corev1.EndpointAddress{IP: s.Addr().String()})
	}
	var subsets []corev1.EndpointSubset //nolint:staticcheck // as above
	for _, port := range slices.Sorted(maps.Keys(byPort)) {
		subsets = append(subsets, corev1.EndpointSubset{ //nolint:staticcheck // as above
			Addresses: byPort[port],
			Ports:     []corev1.EndpointPort{{Name: "https", Port: port, Protocol: corev1.ProtocolTCP}},
		})
	}
	have, err := endpoints.Get(ctx, kubernetesName, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		_, err = endpoints.Create(ctx, &corev1.Endpoints{ //nolint:staticcheck // as above
			ObjectMeta: metav1.ObjectMeta{
				Name:   kubernetesName,
				Labels: map[string]string{discoveryv1.LabelSkipMirror: "true"},
			}, Subsets: subsets,
		}, metav1.CreateOptions{})
		return ignoreConcurrentWrite(err)
	}
	if err != nil || equality.Semantic.DeepEqual(have.Subsets, subsets) {
		return err
	}
	next := have.DeepCopy()
	next.Subsets = subsets
	_, err = endpoints.Update(ctx, next, metav1.UpdateOptions{})
	return ignoreConcurrentWrite(err)
}

func (k *KubernetesService) syncEndpointSlice(ctx context.Context, servers []netip.AddrPort) error {
	slices := k.Client.DiscoveryV1().EndpointSlices(metav1.NamespaceDefault)
	want := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Name:   kubernetesName,
			Labels: map[string]string{discoveryv1.LabelServiceName: kubernetesName},
		},
		AddressType: discoveryv1.AddressTypeIPv4,
	}
	if len(servers) > 0 {
		name, protocol, port, ready := "https", corev1.ProtocolTCP, int32(servers[0].Port()), true
		want.Ports = []discoveryv1.EndpointPort{{Name: &name, Protocol: &protocol, Port: &port}}
		if servers[0].Addr().Is6() {
			want.AddressType = discoveryv1.AddressTypeIPv6
		}
		for _, s := range servers {
			// A slice has one IP family and its ports apply to all endpoints. Servers are
			// configured alike.
			if s.Addr().Is6() == servers[0].Addr().Is6() && s.Port() == servers[0].Port() {
				want.Endpoints = append(want.Endpoints, discoveryv1.Endpoint{
					Addresses: []string{s.Addr().String()}, Conditions: discoveryv1.EndpointConditions{Ready: &ready},
				})
			}
		}
	}
	have, err := slices.Get(ctx, kubernetesName, metav1.GetOptions{})
	if err == nil && have.AddressType != want.AddressType {
		if err := slices.Delete(ctx, kubernetesName, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
			return err
		}
		err = apierrors.NewNotFound(discoveryv1.Resource("endpointslices"), kubernetesName)
	}
	if apierrors.IsNotFound(err) {
		_, err = slices.Create(ctx, want, metav1.CreateOptions{})
		return ignoreConcurrentWrite(err)
	}
	if err != nil ||
		equality.Semantic.DeepEqual(have.Endpoints, want.Endpoints) &&
			equality.Semantic.DeepEqual(have.Ports, want.Ports) {
		return err
	}
	next := have.DeepCopy()
	next.Endpoints, next.Ports = want.Endpoints, want.Ports
	_, err = slices.Update(ctx, next, metav1.UpdateOptions{})
	return ignoreConcurrentWrite(err)
}

// ignoreConcurrentWrite drops errors caused by a concurrent write of another server. The next sync
// observes it.
func ignoreConcurrentWrite(err error) error {
	if apierrors.IsAlreadyExists(err) || apierrors.IsConflict(err) {
		return nil
	}
	return err
}
