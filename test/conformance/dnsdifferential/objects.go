package dnsdifferential

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"berth/services/dns/dnstest"
)

// Write creates the objects and their namespaces.
func Write(ctx context.Context, client kubernetes.Interface, objects dnstest.Objects) error {
	for _, name := range dnstest.Namespaces {
		if name == metav1.NamespaceDefault {
			continue
		}
		n := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
		if _, err := client.CoreV1().Namespaces().Create(ctx, n, metav1.CreateOptions{}); err != nil {
			return err
		}
	}
	for i := range objects.Services {
		svc := &objects.Services[i]
		if _, err := client.CoreV1().Services(svc.Namespace).Create(ctx, svc, metav1.CreateOptions{}); err != nil {
			return fmt.Errorf("service %s: %w", svc.Name, err)
		}
	}
	for i := range objects.Slices {
		slice := &objects.Slices[i]
		slices := client.DiscoveryV1().EndpointSlices(slice.Namespace)
		if _, err := slices.Create(ctx, slice, metav1.CreateOptions{}); err != nil {
			return fmt.Errorf("endpoint slice %s: %w", slice.Name, err)
		}
	}
	return nil
}

// Read returns all Services and EndpointSlices of the API server, without what DNS does not need.
func Read(ctx context.Context, client kubernetes.Interface) (out dnstest.Objects, err error) {
	all, err := client.CoreV1().Services("").List(ctx, metav1.ListOptions{})
	if err != nil {
		return out, err
	}
	slices, err := client.DiscoveryV1().EndpointSlices("").List(ctx, metav1.ListOptions{})
	if err != nil {
		return out, err
	}
	const server = "kubernetes" // the Service of the API server has an address of this machine
	for _, svc := range all.Items {
		if svc.Name == server {
			continue
		}
		out.Services = append(out.Services, corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Namespace: svc.Namespace, Name: svc.Name},
			Spec: corev1.ServiceSpec{Type: svc.Spec.Type, ClusterIP: svc.Spec.ClusterIP,
				ClusterIPs: svc.Spec.ClusterIPs, ExternalName: svc.Spec.ExternalName, Ports: svc.Spec.Ports,
				PublishNotReadyAddresses: svc.Spec.PublishNotReadyAddresses}})
	}
	for _, slice := range slices.Items {
		if slice.Labels[discoveryv1.LabelServiceName] == server {
			continue
		}
		slice.ObjectMeta = metav1.ObjectMeta{Namespace: slice.Namespace, Name: slice.Name,
			Labels: map[string]string{discoveryv1.LabelServiceName: slice.Labels[discoveryv1.LabelServiceName]}}
		out.Slices = append(out.Slices, slice)
	}
	return out, nil
}
