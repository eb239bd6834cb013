package services

import (
	"hash/fnv"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Kubernetes is the Service of the API server itself.
var Kubernetes = Name{Namespace: metav1.NamespaceDefault, Name: "kubernetes"}

// Environment returns the environment variables that Services define for a pod, in the Kubernetes form
// and in that of Docker links, and a hash of them. linked are the Services of the namespace of the pod by
// name, or none without enableServiceLinks. kubernetes is the Service of the API server, or nil.
func Environment(linked map[string]*Service, kubernetes *Service) (env []corev1.EnvVar, version string) {
	chosen := maps.Clone(linked)
	delete(chosen, Kubernetes.Name)
	if kubernetes != nil {
		if chosen == nil {
			chosen = map[string]*Service{}
		}
		chosen[Kubernetes.Name] = kubernetes
	}
	for _, name := range slices.Sorted(maps.Keys(chosen)) {
		env = append(env, variables(name, chosen[name])...)
	}
	h := fnv.New64a()
	for _, v := range env {
		_, _ = h.Write([]byte(v.Name + "=" + v.Value + "\x00")) // a hash never fails
	}
	return env, strconv.FormatUint(h.Sum64(), 16)
}

// variables returns the environment variables of one Service.
func variables(name string, svc *Service) (env []corev1.EnvVar) {
	if len(svc.ClusterIPs) == 0 || len(svc.Ports) == 0 {
		return nil
	}
	add := func(name, value string) { env = append(env, corev1.EnvVar{Name: name, Value: value}) }
	ip := svc.ClusterIPs[0].String()
	number := func(p Port) string { return strconv.Itoa(int(p.Port)) }
	prefix := variable(name)
	first := svc.Ports[0]
	add(prefix+"_SERVICE_HOST", ip)
	add(prefix+"_SERVICE_PORT", number(first))
	for _, p := range svc.Ports {
		if p.Name != "" {
			add(prefix+"_SERVICE_PORT_"+variable(p.Name), number(p))
		}
	}
	url := func(p Port) string {
		return strings.ToLower(string(p.Protocol)) + "://" + net.JoinHostPort(ip, number(p))
	}
	add(prefix+"_PORT", url(first))
	for _, p := range svc.Ports {
		port := prefix + "_PORT_" + number(p) + "_" + strings.ToUpper(string(p.Protocol))
		add(port, url(p))
		add(port+"_PROTO", strings.ToLower(string(p.Protocol)))
		add(port+"_PORT", number(p))
		add(port+"_ADDR", ip)
	}
	return env
}

// variable converts a name to a part of a variable name.
func variable(name string) string { return strings.ToUpper(strings.ReplaceAll(name, "-", "_")) }
