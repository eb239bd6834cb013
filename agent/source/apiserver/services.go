package apiserver

import (
	"cmp"
	"hash/fnv"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"berth/agent/plan"
	"berth/agent/source"
	"berth/internal/apiclient"
	"berth/podspec"
)

// services are the Services of the cluster.
type services struct {
	all  map[types.NamespacedName]*corev1.Service
	read bool
}

// watchServices watches the Services. Their addresses are part of the environment of pods.
func (s *Source) watchServices() {
	name := func(o runtime.Object) (types.NamespacedName, *corev1.Service) {
		svc, _ := o.(*corev1.Service)
		return types.NamespacedName{Namespace: svc.Namespace, Name: svc.Name}, svc
	}
	s.watch(s.ctx, apiclient.WatchOptions{
		Resource: apiclient.Services, Transform: trimService,
		OnReplace: func(list []runtime.Object) {
			s.do(func() {
				s.services.all, s.services.read = make(map[types.NamespacedName]*corev1.Service, len(list)), true
				for _, o := range list {
					key, svc := name(o)
					s.services.all[key] = svc
				}
				s.environments()
			})
		},
		OnUpdate: func(o runtime.Object) {
			s.do(func() {
				key, svc := name(o)
				s.services.all[key] = svc
				s.environments()
			})
		},
		OnDelete: func(o runtime.Object) {
			s.do(func() {
				key, _ := name(o)
				delete(s.services.all, key)
				s.environments()
			})
		},
		OnError: func(err error) { s.do(func() { s.recordError(plan.Services, err) }) },
	})
}

// trimService keeps only the fields of a Service that the environment is made of.
func trimService(o runtime.Object) {
	if svc, ok := o.(*corev1.Service); ok {
		at := svc.Annotations[reachedAtAnnotation]
		svc.ObjectMeta = metav1.ObjectMeta{
			Name:            svc.Name,
			Namespace:       svc.Namespace,
			UID:             svc.UID,
			ResourceVersion: svc.ResourceVersion,
		}
		if at != "" {
			svc.Annotations = map[string]string{reachedAtAnnotation: at}
		}
		svc.Spec = corev1.ServiceSpec{ClusterIP: svc.Spec.ClusterIP, Ports: svc.Spec.Ports}
		svc.Status = corev1.ServiceStatus{}
	}
}

// recordError records the error for all unresolved objects of a kind.
func (s *Source) recordError(kind plan.RefKind, err error) {
	for key, u := range s.objects {
		if key.Kind == kind && !u.resolved {
			u.lastErr = errorText(err)
		}
	}
}

// environments updates the environments of all namespaces in use.
func (s *Source) environments() {
	for key, u := range s.objects {
		if key.Kind == plan.Services {
			s.environment(key, u)
		}
	}
}

// environment computes the environment that Services define for the pods of a namespace.
func (s *Source) environment(key source.ObjectKey, u *object) {
	if !s.services.read {
		return
	}
	var chosen []*corev1.Service
	for _, name := range slices.SortedFunc(maps.Keys(s.services.all), func(a, b types.NamespacedName) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	}) {
		own := name.Namespace == key.Namespace && key.Name == podspec.LinkedServices
		if own && name.Name != masterService ||
			name.Name == masterService && name.Namespace == metav1.NamespaceDefault {
			chosen = append(chosen, s.services.all[name])
		}
	}
	env := environmentOf(chosen)
	h := fnv.New64a()
	for _, v := range env {
		_, _ = h.Write([]byte(v.Name + "=" + v.Value + "\x00")) // a hash never fails
	}
	s.set(u, plan.Object{Env: env, Version: plan.Version{Version: strconv.FormatUint(h.Sum64(), 16)}})
}

// masterService is the Service of the API server itself, in namespace default.
const masterService = "kubernetes"

// reachedAtAnnotation on the Service of the API server lists the addresses of the servers,
// ADDRESS:PORT separated by commas, because the cluster IP is not routed. Only berth-control sets
// it. With other servers the cluster IP counts.
const reachedAtAnnotation = "berth.dev/reached-at"

// serviceAddress returns the address of a Service for pods, and the number of each of its ports
// there.
func serviceAddress(svc *corev1.Service) (ip string, port func(corev1.ServicePort) string) {
	port = func(p corev1.ServicePort) string { return strconv.Itoa(int(p.Port)) }
	if svc.Name == masterService && svc.Namespace == metav1.NamespaceDefault {
		first, _, _ := strings.Cut(svc.Annotations[reachedAtAnnotation], ",")
		if at, err := netip.ParseAddrPort(first); err == nil {
			return at.Addr().String(), func(corev1.ServicePort) string { return strconv.Itoa(int(at.Port())) }
		}
	}
	return svc.Spec.ClusterIP, port
}

// environmentOf returns the environment variables of Services, in the Kubernetes form and in that
// of Docker links.
func environmentOf(all []*corev1.Service) (env []corev1.EnvVar) {
	add := func(name, value string) { env = append(env, corev1.EnvVar{Name: name, Value: value}) }
	for _, svc := range all {
		ip, number := serviceAddress(svc)
		if ip == "" || ip == corev1.ClusterIPNone || len(svc.Spec.Ports) == 0 {
			continue
		}
		prefix := variable(svc.Name)
		first := svc.Spec.Ports[0]
		add(prefix+"_SERVICE_HOST", ip)
		add(prefix+"_SERVICE_PORT", number(first))
		for _, p := range svc.Spec.Ports {
			if p.Name != "" {
				add(prefix+"_SERVICE_PORT_"+variable(p.Name), number(p))
			}
		}
		url := func(p corev1.ServicePort) string {
			return strings.ToLower(string(protocol(p))) + "://" + net.JoinHostPort(ip, number(p))
		}
		add(prefix+"_PORT", url(first))
		for _, p := range svc.Spec.Ports {
			port := prefix + "_PORT_" + strconv.Itoa(int(p.Port)) + "_" + strings.ToUpper(string(protocol(p)))
			add(port, url(p))
			add(port+"_PROTO", strings.ToLower(string(protocol(p))))
			add(port+"_PORT", number(p))
			add(port+"_ADDR", ip)
		}
	}
	return env
}

func protocol(p corev1.ServicePort) corev1.Protocol { return cmp.Or(p.Protocol, corev1.ProtocolTCP) }

// variable converts a name to a part of a variable name.
func variable(name string) string { return strings.ToUpper(strings.ReplaceAll(name, "-", "_")) }
