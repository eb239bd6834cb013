package printers

import (
	"fmt"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

func core(kind string) schema.GroupKind { return schema.GroupKind{Kind: kind} }

var coreKinds = map[schema.GroupKind]Columns{
	core("Pod"): podColumns,
	core("PodTemplate"): columnsOf(podTemplateRow, nameColumn, stringColumn("Containers", "Names of the containers."),
		stringColumn("Images", "Images of the containers."), stringColumn("Pod Labels", "Labels of the pods.")),
	core("Node"): columnsOf(
		nodeRow,
		nameColumn,
		stringColumn("Status", "Readiness and schedulability of the node."),
		stringColumn("Roles", "Roles of the node."),
		ageColumn,
		stringColumn("Version", "Version of the node agent."),
		wideColumn(
			stringColumn("Internal-IP", "Address within the cluster."),
		),
		wideColumn(stringColumn("External-IP", "External address.")),
		wideColumn(
			stringColumn("OS-Image", "Operating system."),
		),
		wideColumn(stringColumn("Kernel-Version", "Kernel version.")),
		wideColumn(stringColumn("Container-Runtime", "Container runtime and its version.")),
	),
	core("Namespace"): columnsOf(func(n *corev1.Namespace, now time.Time) []any {
		return []any{n.Name, string(n.Status.Phase), age(n.CreationTimestamp, now)}
	}, nameColumn, stringColumn("Status", "Phase of the namespace."), ageColumn),
	core("ConfigMap"): columnsOf(func(c *corev1.ConfigMap, now time.Time) []any {
		return []any{c.Name, int64(len(c.Data) + len(c.BinaryData)), age(c.CreationTimestamp, now)}
	}, nameColumn, integerColumn("Data", "Number of keys."), ageColumn),
	core("Secret"): columnsOf(func(s *corev1.Secret, now time.Time) []any {
		return []any{s.Name, string(s.Type), int64(len(s.Data)), age(s.CreationTimestamp, now)}
	}, nameColumn, stringColumn("Type", "Type of the secret."), integerColumn("Data", "Number of keys."),
		ageColumn),
	core("ServiceAccount"): columnsOf(func(s *corev1.ServiceAccount, now time.Time) []any {
		return []any{s.Name, int64(len(s.Secrets)), age(s.CreationTimestamp, now)}
	}, nameColumn, integerColumn("Secrets", "Number of listed secrets."), ageColumn),
	core("Service"): columnsOf(
		serviceRow,
		nameColumn,
		stringColumn("Type", "Type of the service."),
		stringColumn("Cluster-IP", "Address within the cluster."),
		stringColumn(
			"External-IP",
			"External addresses.",
		),
		stringColumn("Port(s)", "Ports, with node ports."),
		ageColumn,
		wideColumn(stringColumn("Selector", "Selector of the pods.")),
	),
	core("Endpoints"): columnsOf(
		func(e *corev1.Endpoints, now time.Time) []any { //nolint:staticcheck // served as long as upstream serves it
			return []any{e.Name, endpoints(e), age(e.CreationTimestamp, now)}
		},
		nameColumn,
		stringColumn("Endpoints", "Ready addresses."),
		ageColumn,
	),
	core("LimitRange"): columnsOf(func(l *corev1.LimitRange, _ time.Time) []any {
		return []any{l.Name, l.CreationTimestamp.UTC().Format(time.RFC3339)}
	}, nameColumn, stringColumn("Created At", "Creation time.")),
	core("ResourceQuota"): columnsOf(
		quotaRow,
		nameColumn,
		stringColumn("Request", "Used and hard requests."),
		stringColumn("Limit", "Used and hard limits."),
		ageColumn,
	),
	core("ReplicationController"): columnsOf(func(r *corev1.ReplicationController, now time.Time) []any {
		names, images := "", ""
		if r.Spec.Template != nil {
			names, images = containers(&r.Spec.Template.Spec)
		}
		return []any{r.Name, int32OrZero(r.Spec.Replicas), int64(r.Status.Replicas), int64(r.Status.ReadyReplicas),
			age(r.CreationTimestamp, now), names, images, formatLabels(r.Spec.Selector)}
	}, replicaDefinitions...),
	core("Event"): eventColumns,
}

func podTemplateRow(p *corev1.PodTemplate, _ time.Time) []any {
	names, images := containers(&p.Template.Spec)
	return []any{p.Name, names, images, formatLabels(p.Template.Labels)}
}

func nodeRow(n *corev1.Node, now time.Time) []any {
	status := "Unknown"
	for _, c := range n.Status.Conditions {
		if c.Type == corev1.NodeReady {
			status = "NotReady"
			if c.Status == corev1.ConditionTrue {
				status = "Ready"
			}
		}
	}
	if n.Spec.Unschedulable {
		status += ",SchedulingDisabled"
	}
	about := n.Status.NodeInfo
	return []any{n.Name, status, roles(n), age(n.CreationTimestamp, now), about.KubeletVersion,
		address(n, corev1.NodeInternalIP), address(n, corev1.NodeExternalIP),
		orUnknown(about.OSImage), orUnknown(about.KernelVersion), orUnknown(about.ContainerRuntimeVersion)}
}

func orUnknown(s string) string {
	if s == "" {
		return unknown
	}
	return s
}

func address(n *corev1.Node, kind corev1.NodeAddressType) string {
	for _, a := range n.Status.Addresses {
		if a.Type == kind {
			return a.Address
		}
	}
	return none
}

// roles returns the roles from both labels that name them.
func roles(n *corev1.Node) string {
	found := map[string]bool{}
	for key, value := range n.Labels {
		if role, ok := strings.CutPrefix(key, "node-role.kubernetes.io/"); ok && role != "" {
			found[role] = true
		} else if key == "kubernetes.io/role" && value != "" {
			found[value] = true
		}
	}
	return orNone(strings.Join(slices.Sorted(maps.Keys(found)), ","))
}

func serviceRow(s *corev1.Service, now time.Time) []any {
	cluster := s.Spec.ClusterIP
	if len(s.Spec.ClusterIPs) > 0 {
		cluster = s.Spec.ClusterIPs[0]
	}
	ports := make([]string, 0, len(s.Spec.Ports))
	for _, p := range s.Spec.Ports {
		port := strconv.Itoa(int(p.Port))
		if p.NodePort > 0 {
			port += ":" + strconv.Itoa(int(p.NodePort))
		}
		ports = append(ports, port+"/"+string(p.Protocol))
	}
	return []any{s.Name, string(s.Spec.Type), orNone(cluster), externalIPs(s), orNone(strings.Join(ports, ",")),
		age(s.CreationTimestamp, now), formatLabels(s.Spec.Selector)}
}

// externalIPs returns the external addresses of a Service.
func externalIPs(s *corev1.Service) string {
	switch s.Spec.Type {
	case corev1.ServiceTypeExternalName:
		return s.Spec.ExternalName
	case corev1.ServiceTypeLoadBalancer:
		var all []string
		for _, in := range s.Status.LoadBalancer.Ingress {
			if in.IP != "" {
				all = append(all, in.IP)
			} else if in.Hostname != "" {
				all = append(all, in.Hostname)
			}
		}
		if all = append(all, s.Spec.ExternalIPs...); len(all) > 0 {
			return strings.Join(all, ",")
		}
		return "<pending>"
	}
	return orNone(strings.Join(s.Spec.ExternalIPs, ","))
}

func endpoints(e *corev1.Endpoints) string { //nolint:staticcheck // served as long as upstream serves it
	var all []string
	for _, s := range e.Subsets {
		for _, a := range s.Addresses {
			if len(s.Ports) == 0 {
				all = append(all, a.IP)
			}
			for _, p := range s.Ports {
				all = append(all, net.JoinHostPort(a.IP, strconv.Itoa(int(p.Port))))
			}
		}
	}
	return joinLimited(all, none)
}

func quotaRow(q *corev1.ResourceQuota, now time.Time) []any {
	var requests, limits []string
	for _, name := range slices.Sorted(maps.Keys(q.Status.Hard)) {
		used, hard := q.Status.Used[name], q.Status.Hard[name]
		text := fmt.Sprintf("%s: %s/%s", name, used.String(), hard.String())
		if strings.Contains(string(name), "limits") {
			limits = append(limits, text)
		} else {
			requests = append(requests, text)
		}
	}
	return []any{q.Name, strings.Join(requests, ", "), strings.Join(limits, ", "), age(q.CreationTimestamp, now)}
}
