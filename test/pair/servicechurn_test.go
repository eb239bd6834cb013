package pair

import (
	"context"
	"fmt"
	"net"
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// churnRange has the addresses of endpoints that do not exist.
var churnRange = netip.MustParsePrefix("10.99.0.0/16")

const churnServices = 8

// change changes a Service, EndpointSlice, pod or policy at random.
func (s *serviceKills) change() {
	s.t.Helper()
	ctx, name := s.t.Context(), fmt.Sprint("churn-", s.rng.IntN(churnServices))
	switch s.rng.IntN(8) {
	case 0, 1:
		s.deleteService(name)
		s.createService(name)
	case 2:
		s.deleteService(name)
	case 3:
		protocol := corev1.ProtocolTCP
		if s.udp[name] != "" {
			protocol = corev1.ProtocolUDP
		}
		s.setSlice(name, name, protocol, s.churnAddresses())
	case 4, 5: // the siblings of unchanged endpoints
		s.setSlice("rolling", "rolling-changed", corev1.ProtocolTCP, s.churnAddresses())
	case 6:
		pods := s.Client.CoreV1().Pods("default")
		if len(s.pods) < 2 {
			s.createdPods++
			pod := s.sleepingPod(fmt.Sprint("churn-", s.createdPods), "churn")
			s.create(pod)
			s.pods = append(s.pods, pod.Name)
			return
		}
		s.api("delete a pod", func() error { return pods.Delete(ctx, s.pods[0], metav1.DeleteOptions{}) })
		s.pods = s.pods[1:]
	case 7:
		s.changePolicy()
	}
}

// changePolicy creates or deletes the policy of the changing pods.
func (s *serviceKills) changePolicy() {
	s.t.Helper()
	s.policies++
	policies := s.Client.NetworkingV1().NetworkPolicies("default")
	if s.policies%2 == 0 {
		s.api("delete the policy", func() error {
			return policies.Delete(s.t.Context(), "churn", metav1.DeleteOptions{})
		})
		return
	}
	s.api("create the policy", func() error {
		_, err := policies.Create(s.t.Context(), &networkingv1.NetworkPolicy{
			ObjectMeta: metav1.ObjectMeta{Name: "churn"},
			Spec: networkingv1.NetworkPolicySpec{
				PodSelector: metav1.LabelSelector{MatchLabels: map[string]string{"app": "churn"}},
				Ingress: []networkingv1.NetworkPolicyIngressRule{{From: []networkingv1.NetworkPolicyPeer{{
					PodSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "client"}},
				}}}},
			},
		}, metav1.CreateOptions{})
		return err
	})
}

// api calls the API server until it answers: on a busy machine calls time out. What exists already, or does not exist
// any more, is no error.
func (s *serviceKills) api(what string, call func() error) {
	s.t.Helper()
	s.waitUntil(what, func() string {
		if err := call(); err != nil && !apierrors.IsNotFound(err) && !apierrors.IsAlreadyExists(err) {
			return err.Error()
		}
		return ""
	})
}

func (s *serviceKills) churnAddresses() (out []string) {
	for range 1 + s.rng.IntN(5) {
		out = append(out, fmt.Sprintf("10.99.%d.%d", s.rng.IntN(3), 1+s.rng.IntN(200)))
	}
	return out
}

// createService creates a random Service with endpoints.
func (s *serviceKills) createService(name string) {
	s.t.Helper()
	s.services++
	svc := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.ServiceSpec{
		Ports: []corev1.ServicePort{{Name: "echo", Port: 80, Protocol: corev1.ProtocolTCP}},
	}}
	udp := s.rng.IntN(2) == 0
	if udp {
		svc.Spec.Ports[0].Protocol = corev1.ProtocolUDP
	}
	if s.rng.IntN(2) == 0 {
		svc.Spec.Type = corev1.ServiceTypeNodePort
		if s.rng.IntN(2) == 0 {
			svc.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
		}
	}
	if s.rng.IntN(3) == 0 {
		svc.Spec.SessionAffinity = corev1.ServiceAffinityClientIP
	}
	all := s.Client.CoreV1().Services("default")
	s.api("create Service "+name, func() error {
		_, err := all.Create(s.t.Context(), svc, metav1.CreateOptions{})
		return err
	})
	s.api("get Service "+name, func() (err error) {
		svc, err = all.Get(s.t.Context(), name, metav1.GetOptions{})
		return err
	})
	if udp {
		s.udp[name] = net.JoinHostPort(svc.Spec.ClusterIP, "80")
	}
	s.setSlice(name, name, svc.Spec.Ports[0].Protocol, s.churnAddresses())
}

func (s *serviceKills) deleteService(name string) {
	s.t.Helper()
	delete(s.udp, name)
	ctx := s.t.Context()
	s.api("delete Service "+name, func() error {
		return s.Client.CoreV1().Services("default").Delete(ctx, name, metav1.DeleteOptions{})
	})
	s.api("delete EndpointSlice "+name, func() error {
		return s.Client.DiscoveryV1().EndpointSlices("default").Delete(ctx, name, metav1.DeleteOptions{})
	})
}

// setSlice creates or replaces an EndpointSlice.
func (s *serviceKills) setSlice(service, name string, protocol corev1.Protocol, addresses []string) {
	s.t.Helper()
	s.slices++
	portName, port := "echo", int32(echoPort)
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Name: name, Labels: map[string]string{discoveryv1.LabelServiceName: service}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: &portName, Protocol: &protocol, Port: &port}},
	}
	for _, a := range addresses {
		slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{Addresses: []string{a}, NodeName: &s.Node})
	}
	all := s.Client.DiscoveryV1().EndpointSlices("default")
	s.api("write EndpointSlice "+name, func() error {
		_, err := all.Update(s.t.Context(), slice, metav1.UpdateOptions{})
		if apierrors.IsNotFound(err) {
			_, err = all.Create(s.t.Context(), slice, metav1.CreateOptions{})
		}
		return err
	})
}

// sendDatagrams opens flows through the UDP Services that change.
func (s *serviceKills) sendDatagrams() {
	s.t.Helper()
	s.must(s.Host.RunInNetwork(func() error {
		for _, to := range s.udp {
			for range 3 {
				c, err := (&net.Dialer{}).DialContext(context.Background(), "udp", to)
				if err != nil {
					return err
				}
				_, _ = c.Write([]byte("datagram")) // an ICMP error of a node without the rule
				_ = c.Close()
			}
		}
		return nil
	}))
}

// removeChurn deletes all that changes.
func (s *serviceKills) removeChurn() {
	s.t.Helper()
	for i := range churnServices {
		s.deleteService(fmt.Sprint("churn-", i))
	}
	s.deleteService("rolling-changed")
	ctx := s.t.Context()
	s.api("delete the policy", func() error {
		return s.Client.NetworkingV1().NetworkPolicies("default").Delete(ctx, "churn", metav1.DeleteOptions{})
	})
	pods := s.Client.CoreV1().Pods("default")
	only := metav1.ListOptions{LabelSelector: "app=churn"}
	s.api("delete the changing pods", func() error {
		return pods.DeleteCollection(ctx, metav1.DeleteOptions{}, only)
	})
	s.waitUntil("the changing pods to be deleted", func() string {
		list, err := pods.List(ctx, only)
		if err != nil || len(list.Items) > 0 {
			return fmt.Sprint(len(list.Items), err)
		}
		return ""
	})
}
