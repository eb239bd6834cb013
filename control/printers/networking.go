package printers

import (
	"strconv"
	"strings"
	"time"

	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

var networkingKinds = map[schema.GroupKind]Columns{
	{Group: "networking.k8s.io", Kind: "NetworkPolicy"}: columnsOf(
		func(p *networkingv1.NetworkPolicy, now time.Time) []any {
			return []any{p.Name, formatSelector(&p.Spec.PodSelector), age(p.CreationTimestamp, now)}
		},
		nameColumn,
		stringColumn("Pod-Selector", "Selector of the pods."),
		ageColumn,
	),
	{Group: "networking.k8s.io", Kind: "Ingress"}: columnsOf(
		ingressRow,
		nameColumn,
		stringColumn("Class", "IngressClass."),
		stringColumn("Hosts", "Hosts of the rules."),
		stringColumn("Address", "Addresses of the load balancer."),
		stringColumn("Ports", "Ports on which the ingress listens."),
		ageColumn,
	),
	{Group: "networking.k8s.io", Kind: "IngressClass"}: columnsOf(
		func(c *networkingv1.IngressClass, now time.Time) []any {
			parameters := "<none>"
			if p := c.Spec.Parameters; p != nil {
				parameters = p.Kind
				if p.APIGroup != nil {
					parameters += "." + *p.APIGroup
				}
				parameters += "/" + p.Name
			}
			return []any{c.Name, c.Spec.Controller, parameters, age(c.CreationTimestamp, now)}
		},
		nameColumn,
		stringColumn("Controller", "Controller of the class."),
		stringColumn("Parameters", "Parameters of the class."),
		ageColumn,
	),
	{Group: "networking.k8s.io", Kind: "ServiceCIDR"}: columnsOf(
		func(c *networkingv1.ServiceCIDR, now time.Time) []any {
			return []any{c.Name, strings.Join(c.Spec.CIDRs, ","), age(c.CreationTimestamp, now)}
		},
		nameColumn,
		stringColumn("CIDRs", "Ranges of the addresses."),
		ageColumn,
	),
	{Group: "networking.k8s.io", Kind: "IPAddress"}: columnsOf(
		func(a *networkingv1.IPAddress, now time.Time) []any {
			parent := "<none>"
			if r := a.Spec.ParentRef; r != nil {
				parent = r.Resource
				if r.Group != "" {
					parent += "." + r.Group
				}
				if r.Namespace != "" {
					parent += "/" + r.Namespace
				}
				parent += "/" + r.Name
			}
			return []any{a.Name, parent}
		},
		nameColumn,
		stringColumn("ParentRef", "Object that uses the address."),
	),
}

// maxShownHosts is how many hosts of an Ingress are shown.
const maxShownHosts = 3

func ingressRow(i *networkingv1.Ingress, now time.Time) []any {
	class, ports := "<none>", "80"
	if c := i.Spec.IngressClassName; c != nil {
		class = *c
	}
	if len(i.Spec.TLS) > 0 {
		ports = "80, 443"
	}
	var hosts, addresses []string
	for _, r := range i.Spec.Rules {
		if r.Host != "" {
			hosts = append(hosts, r.Host)
		}
	}
	shown := strings.Join(hosts, ",")
	switch more := len(hosts) - maxShownHosts; {
	case len(hosts) == 0:
		shown = "*"
	case more > 0:
		shown = strings.Join(hosts[:maxShownHosts], ",") + " + " + strconv.Itoa(more) + " more..."
	}
	for _, in := range i.Status.LoadBalancer.Ingress {
		switch {
		case in.IP != "":
			addresses = append(addresses, in.IP)
		case in.Hostname != "":
			addresses = append(addresses, in.Hostname)
		}
	}
	return []any{i.Name, class, shown, strings.Join(addresses, ","), ports, age(i.CreationTimestamp, now)}
}
