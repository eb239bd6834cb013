package apiserver

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"path"
	"reflect"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	certsv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	nodev1 "k8s.io/api/node/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"

	"berth/agent/checkpoint"
	"berth/agent/plan"
	"berth/agent/source"
	"berth/internal/apiclient"
	"berth/services"
	"berth/services/policy"
)

// offline returns a source whose server is not reachable and whose Run is not running. Tests call
// its steps.
func offline(t *testing.T, o Options) (*Source, *[]source.Snapshot) {
	t.Helper()
	c, err := apiclient.New(apiclient.Options{Config: &rest.Config{Host: "http://127.0.0.1:1"}})
	if err != nil {
		t.Fatal(err)
	}
	o.Client = c
	s := New(o)
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(func() { cancel(); s.wg.Wait() })
	var snaps []source.Snapshot
	s.ctx, s.nodeRegistered, s.nameUnique, s.emit = ctx, true, true, func(snap source.Snapshot) {
		snaps = append(snaps, snap)
	}
	return s, &snaps
}

func podOf(uid types.UID, configMap string) *corev1.Pod {
	pod := &corev1.Pod{}
	pod.UID, pod.Namespace, pod.Name, pod.Generation = uid, "default", string(uid), 1
	c := corev1.Container{Name: "c", Image: "i"}
	if configMap != "" {
		c.EnvFrom = []corev1.EnvFromSource{
			{
				ConfigMapRef: &corev1.ConfigMapEnvSource{
					LocalObjectReference: corev1.LocalObjectReference{Name: configMap},
				},
			},
		}
	}
	pod.Spec.Containers = []corev1.Container{c}
	return pod
}

// Invariant D1.
func TestPreviousPodsUntilListSucceeds(t *testing.T) {
	t.Parallel()
	known := normalize(podOf("a", "conf"))
	objects := plan.Objects{
		{Kind: plan.ConfigMap, Name: "conf"}:  {Version: plan.Version{Version: "1"}, ConfigMap: &corev1.ConfigMap{}},
		{Kind: plan.Services, Name: "linked"}: {Version: plan.Version{Version: "2"}},
	}
	s, snaps := offline(t, Options{PreviousPods: []PreviousPod{{known, objects}}})
	s.step()
	if len(*snaps) > 0 {
		t.Fatal("emitted before the server was contacted")
	}
	s.restorePrevious()
	s.step()
	if len(*snaps) != 1 || (*snaps)[0].Ready || len((*snaps)[0].Pods) != 1 {
		t.Fatalf("%+v", *snaps)
	}
	key := source.ObjectKey{
		Kind:           plan.ConfigMap,
		NamespacedName: types.NamespacedName{Namespace: "default", Name: "conf"},
	}
	if (*snaps)[0].Objects[key].ConfigMap == nil {
		t.Error("the objects of the pod are missing")
	}
	s.synced([]runtime.Object{podOf("b", "")})
	s.services.read = true
	s.environments("")
	s.step()
	last := (*snaps)[len(*snaps)-1]
	if !last.Ready || len(last.Pods) != 1 || last.Pods[0].UID != "b" {
		t.Errorf("%+v", last)
	}
	if len(last.Objects) != 1 { // the Services of b
		t.Errorf("unused objects are still watched: %v", last.Objects)
	}
}

// matches reports whether a snapshot has the given readiness and pods, in order.
func matches(snap source.Snapshot, ready bool, pods ...types.UID) bool {
	return snap.Ready == ready &&
		slices.EqualFunc(snap.Pods, pods, func(p *corev1.Pod, uid types.UID) bool { return p.UID == uid })
}

// Invariant D1: pods that the server does not list, or has deleted since, are not emitted.
func TestPreviousPodsUntilNodeIsRegistered(t *testing.T) {
	t.Parallel()
	known := func() (out []PreviousPod) {
		for _, uid := range []types.UID{"a", "b", "gone"} {
			out = append(out, PreviousPod{normalize(podOf(uid, "")), plan.Objects{}})
		}
		return out
	}
	has := func() []runtime.Object { return []runtime.Object{podOf("a", ""), podOf("b", ""), podOf("new", "")} }
	for name, first := range map[string]func(s *Source){
		"list before the timeout": func(s *Source) {
			s.synced(has())
			s.step()
			s.waitExpired = true
			s.restorePrevious()
		},
		"list after the timeout": func(s *Source) {
			s.waitExpired = true
			s.restorePrevious()
			s.step()
			s.synced(has())
		},
		"repeated list": func(s *Source) {
			s.synced(has())
			s.synced(has())
			s.waitExpired = true
			s.restorePrevious()
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, snaps := offline(t, Options{PreviousPods: known()})
			s.nodeRegistered, s.services.read = false, true
			last := func() source.Snapshot { s.step(); return (*snaps)[len(*snaps)-1] }
			first(s)
			if got := last(); !matches(got, false, "a", "b") {
				t.Errorf("before the registration: %+v", got)
			}
			s.remove(podOf("b", ""))
			s.put(podOf("newer", ""))
			if got := last(); !matches(got, false, "a") {
				t.Errorf("after a deletion: %+v", got)
			}
			s.nodeRegistered, s.dirty = true, true
			if got := last(); !matches(got, true, "a", "new", "newer") {
				t.Errorf("after the registration: %+v", got)
			}
		})
	}
}

// Invariant D1: a reachable server delays the pods of the previous run for a while, and for as long
// as another machine may use the node's name.
func TestReachableServerDelaysPreviousPods(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		node, alone := make(chan struct{}), make(chan struct{})
		s := New(Options{
			Client: answering(
				t,
				podOf("a", ""),
				podOf("new", ""),
			), NodeName: "n", NodeRegistered: node, NameUnique: alone,
			PreviousPods: []PreviousPod{{normalize(podOf("a", "")), plan.Objects{}}},
		})
		ctx, cancel := context.WithCancel(t.Context())
		var snaps []source.Snapshot
		ended := make(chan error)
		go func() { ended <- s.Run(ctx, func(snap source.Snapshot) { snaps = append(snaps, snap) }) }()
		time.Sleep(2 * serverTimeout)
		synctest.Wait()
		if len(snaps) > 0 {
			t.Errorf("the name may be in use: %d snapshots", len(snaps))
		}
		close(alone)
		synctest.Wait()
		if len(snaps) == 0 || !matches(snaps[len(snaps)-1], false, "a") {
			t.Errorf("the name is unique: %d snapshots", len(snaps))
		}
		close(node)
		synctest.Wait()
		if len(snaps) == 0 || !matches(snaps[len(snaps)-1], true, "a", "new") {
			t.Errorf("the node is registered: %d snapshots", len(snaps))
		}
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

// server answers every watch with its objects of the watched type and no changes.
type server []runtime.Object

func answering(t *testing.T, objects ...runtime.Object) *apiclient.Client {
	t.Helper()
	c, err := apiclient.New(apiclient.Options{Config: &rest.Config{
		Host: "http://192.0.2.1", WrapTransport: func(http.RoundTripper) http.RoundTripper { return server(objects) },
	}})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func (s server) RoundTrip(r *http.Request) (*http.Response, error) {
	of := map[string]runtime.Object{"pods": &corev1.Pod{}, "services": &corev1.Service{},
		"endpointslices": &discoveryv1.EndpointSlice{}, "networkpolicies": &networkingv1.NetworkPolicy{},
		"clustertrustbundles":    &certsv1.ClusterTrustBundle{},
		"podcertificaterequests": &certsv1.PodCertificateRequest{},
		"namespaces":             &corev1.Namespace{}, "runtimeclasses": &nodev1.RuntimeClass{}}[path.Base(r.URL.Path)]
	if of == nil {
		return &http.Response{StatusCode: http.StatusNotFound, Body: http.NoBody, Request: r}, nil
	}
	events := &bytes.Buffer{}
	event := func(kind string, o runtime.Object) {
		gvks, _, err := scheme.Scheme.ObjectKinds(o)
		o = o.DeepCopyObject()
		o.GetObjectKind().SetGroupVersionKind(gvks[0])
		o.(metav1.Object).SetResourceVersion("1")
		if err == nil {
			err = json.NewEncoder(events).Encode(map[string]any{"type": kind, "object": o})
		}
		if err != nil {
			panic(err)
		}
	}
	selector, err := fields.ParseSelector(r.URL.Query().Get("fieldSelector"))
	if err != nil {
		return nil, err
	}
	for _, o := range s {
		if b, ok := o.(*certsv1.ClusterTrustBundle); ok && !selector.Matches(fields.Set{"metadata.name": b.Name,
			"spec.signerName": b.Spec.SignerName}) {
			continue
		}
		if reflect.TypeOf(o) == reflect.TypeOf(of) {
			event("ADDED", o)
		}
	}
	of.(metav1.Object).SetAnnotations(map[string]string{metav1.InitialEventsAnnotationKey: "true"})
	event("BOOKMARK", of)
	silent, end := io.Pipe()
	context.AfterFunc(r.Context(), func() { end.Close() })
	body := struct {
		io.Reader
		io.Closer
	}{io.MultiReader(events, silent), silent}
	return &http.Response{
		StatusCode: http.StatusOK,
		Header:     http.Header{"Content-Type": {runtime.ContentTypeJSON}},
		Body:       body,
		Request:    r,
	}, nil
}

// TestServicesAndEndpointSlices watches both kinds and reads them from the store.
func TestServicesAndEndpointSlices(t *testing.T) {
	t.Parallel()
	svc := &corev1.Service{Spec: corev1.ServiceSpec{ClusterIP: "10.43.0.5", Ports: []corev1.ServicePort{{Port: 80}}}}
	svc.Namespace, svc.Name = "ns", "web"
	slice := func(name, service string) *discoveryv1.EndpointSlice {
		es := &discoveryv1.EndpointSlice{AddressType: discoveryv1.AddressTypeIPv4,
			Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"10.1.0.7"}}}}
		es.Namespace, es.Name, es.Labels = "ns", name, map[string]string{discoveryv1.LabelServiceName: service}
		return es
	}
	synctest.Test(t, func(t *testing.T) {
		store := services.NewStore()
		needed := make(chan struct{})
		s := New(Options{Client: answering(t, svc, slice("web-1", "web"), slice("manual", "")), Services: store,
			EndpointsNeeded: needed})
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- s.Run(ctx, func(source.Snapshot) {}) }()
		synctest.Wait()
		if store.Synced() {
			t.Error("EndpointSlices are read before they are needed")
		}
		close(needed)
		synctest.Wait()
		got, slices := store.Service(services.Name{Namespace: "ns", Name: "web"})
		if !store.Synced() || got == nil || got.Ports[0].Port != 80 || len(slices) != 1 || slices[0].Name != "web-1" ||
			slices[0].Endpoints[0].Address.String() != "10.1.0.7" {
			t.Errorf("synced %t: %+v %+v", store.Synced(), got, slices)
		}
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

// TestPolicies: without a policy, no pods and namespaces are read. With one, it reaches the store together with
// them.
func TestPolicies(t *testing.T) {
	t.Parallel()
	np := &networkingv1.NetworkPolicy{}
	np.Namespace, np.Name = "ns", "web"
	space := &corev1.Namespace{}
	space.Name, space.Labels = "ns", map[string]string{"a": "b"}
	pod := podOf("a", "")
	for _, c := range []struct {
		name    string
		objects []runtime.Object
		want    int
	}{
		{"no policy", []runtime.Object{pod, space}, 0},
		{"a policy", []runtime.Object{np, pod, space}, 1},
	} {
		synctest.Test(t, func(t *testing.T) {
			store := policy.NewStore()
			needed := make(chan bool, 1)
			reads := &countedReads{inner: server(c.objects), reads: map[string]int{}}
			client, err := apiclient.New(apiclient.Options{Config: &rest.Config{
				Host: "http://192.0.2.1", WrapTransport: func(http.RoundTripper) http.RoundTripper { return reads },
			}})
			if err != nil {
				t.Fatal(err)
			}
			s := New(Options{Client: client, NodeName: "n", Policies: store, PoliciesNeeded: needed})
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan error)
			go func() { ended <- s.Run(ctx, func(source.Snapshot) {}) }()
			synctest.Wait()
			if store.Synced() {
				t.Errorf("%s: policies are read before they are needed", c.name)
			}
			needed <- false
			synctest.Wait()
			if !store.Synced() || store.PolicyNumber() != c.want {
				t.Errorf("%s: synced %t, %d policies", c.name, store.Synced(), store.PolicyNumber())
			}
			// The pods of the node are always read.
			if got := reads.of("namespaces"); got != c.want {
				t.Errorf("%s: namespaces were read %d times, want %d", c.name, got, c.want)
			}
			if got := reads.of("pods"); got != 1+c.want {
				t.Errorf("%s: pods were read %d times, want %d", c.name, got, 1+c.want)
			}
			cancel()
			if err := <-ended; err != nil {
				t.Error(err)
			}
		})
	}
}

// countedReads counts requests by resource.
type countedReads struct {
	inner http.RoundTripper
	mu    sync.Mutex
	reads map[string]int
}

func (c *countedReads) RoundTrip(r *http.Request) (*http.Response, error) {
	c.mu.Lock()
	c.reads[path.Base(r.URL.Path)]++
	c.mu.Unlock()
	return c.inner.RoundTrip(r)
}

func (c *countedReads) of(resource string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.reads[resource]
}

// Invariant D2: unresolved objects are late at first, and errors after the timeout.
func TestPodIsEmittedBeforeItsObjects(t *testing.T) {
	t.Parallel()
	now := time.Now()
	s, snaps := offline(t, Options{Now: func() time.Time { return now }})
	s.services.read = true
	s.synced([]runtime.Object{podOf("a", "conf")})
	next := s.step()
	key := source.ObjectKey{
		Kind:           plan.ConfigMap,
		NamespacedName: types.NamespacedName{Namespace: "default", Name: "conf"},
	}
	if len(*snaps) != 1 || len((*snaps)[0].Pods) != 1 || !(*snaps)[0].Objects[key].Pending {
		t.Fatalf("%+v", *snaps)
	}
	if next.IsZero() || next.After(now.Add(objectTimeout)) {
		t.Errorf("next step at %v", next)
	}
	now = now.Add(objectTimeout)
	s.step()
	last := (*snaps)[len(*snaps)-1]
	if o := last.Objects[key]; len(last.Pods) != 1 || o.Missing || o.Pending || o.Err == "" {
		t.Errorf("%+v", last)
	}
}

// Invariant D2.
func TestPodWaitsForSandboxObjects(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]func(*corev1.PodSpec){
		"pull secret":   func(s *corev1.PodSpec) { s.ImagePullSecrets = []corev1.LocalObjectReference{{Name: "pull"}} },
		"runtime class": func(s *corev1.PodSpec) { class := "gvisor"; s.RuntimeClassName = &class },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			now := time.Now()
			s, snaps := offline(t, Options{Now: func() time.Time { return now }})
			s.services.read = true
			pod := podOf("a", "")
			want(&pod.Spec)
			s.synced([]runtime.Object{pod})
			s.step()
			if len(*snaps) != 1 || len((*snaps)[0].Pods) != 0 || !(*snaps)[0].Pending["a"] {
				t.Fatalf("%+v", *snaps)
			}
			now = now.Add(objectTimeout)
			s.step()
			if last := (*snaps)[len(*snaps)-1]; len(last.Pods) != 1 || len(last.Pending) != 0 {
				t.Errorf("%+v", last)
			}
		})
	}
}

// Invariants D4 and D5.
func TestOwnStatusUpdateIsNotAChange(t *testing.T) {
	t.Parallel()
	s, snaps := offline(t, Options{})
	s.services.read = true
	s.synced([]runtime.Object{podOf("a", "")})
	s.step()
	was := (*snaps)[0].Pods[0]
	same := podOf("a", "")
	same.ResourceVersion = "9"
	same.Status.Phase, same.Status.Conditions = corev1.PodRunning, []corev1.PodCondition{
		{Type: corev1.PodReady, Status: "True"},
	}
	s.put(same)
	if s.step(); len(*snaps) != 1 {
		t.Error("an own status update was emitted as a change")
	}
	gate := podOf("a", "")
	gate.Status.Conditions = []corev1.PodCondition{{Type: "example.com/gate", Status: "True"}}
	s.put(gate)
	mirror := podOf("m", "")
	mirror.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: "h"}
	s.put(mirror)
	s.step()
	last := (*snaps)[len(*snaps)-1]
	if len(last.Pods) != 1 || last.Pods[0] == was {
		t.Errorf("%+v", last.Pods)
	}
	at := metav1.Now()
	gate = gate.DeepCopy()
	gate.DeletionTimestamp = &at
	s.put(gate)
	s.step()
	if last := (*snaps)[len(*snaps)-1]; last.Pods[0].DeletionTimestamp == nil {
		t.Error("a deletion was not emitted")
	}
}

func TestServiceEnvironment(t *testing.T) {
	t.Parallel()
	svc := &corev1.Service{
		Spec: corev1.ServiceSpec{
			ClusterIP: "10.0.0.5",
			Ports:     []corev1.ServicePort{{Name: "http-alt", Port: 80}, {Port: 53, Protocol: corev1.ProtocolUDP}},
		},
	}
	svc.Name = "my-web"
	headless := &corev1.Service{Spec: corev1.ServiceSpec{ClusterIP: corev1.ClusterIPNone, Ports: svc.Spec.Ports}}
	var got []string
	headless.Name = "headless"
	both := map[string]*services.Service{
		"my-web": services.FromService(svc), "headless": services.FromService(headless),
	}
	env, _ := services.Environment(both, nil)
	for _, v := range env {
		got = append(got, v.Name+"="+v.Value)
	}
	want := []string{
		"MY_WEB_SERVICE_HOST=10.0.0.5", "MY_WEB_SERVICE_PORT=80", "MY_WEB_SERVICE_PORT_HTTP_ALT=80",
		"MY_WEB_PORT=tcp://10.0.0.5:80",
		"MY_WEB_PORT_80_TCP=tcp://10.0.0.5:80", "MY_WEB_PORT_80_TCP_PROTO=tcp", "MY_WEB_PORT_80_TCP_PORT=80",
		"MY_WEB_PORT_80_TCP_ADDR=10.0.0.5",
		"MY_WEB_PORT_53_UDP=udp://10.0.0.5:53", "MY_WEB_PORT_53_UDP_PROTO=udp", "MY_WEB_PORT_53_UDP_PORT=53",
		"MY_WEB_PORT_53_UDP_ADDR=10.0.0.5",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got %v", got)
	}
}

func TestEnvironmentOfKubernetesService(t *testing.T) {
	t.Parallel()
	of := func(ip string) *services.Service {
		return services.FromService(&corev1.Service{
			Spec: corev1.ServiceSpec{ClusterIP: ip, Ports: []corev1.ServicePort{{Name: "https", Port: 443}}},
		})
	}
	// A Service of this name in another namespace does not replace that of the API server.
	linked := map[string]*services.Service{"kubernetes": of("10.43.0.9"), "web": of("10.43.0.8")}
	value := func(env []corev1.EnvVar, name string) string {
		for _, v := range env {
			if v.Name == name {
				return v.Value
			}
		}
		return ""
	}
	with, version := services.Environment(linked, of("10.43.0.1"))
	if value(with, "KUBERNETES_SERVICE_HOST") != "10.43.0.1" || value(with, "KUBERNETES_SERVICE_PORT") != "443" ||
		value(with, "WEB_SERVICE_HOST") != "10.43.0.8" || len(linked) != 2 {
		t.Errorf("got %v", with)
	}
	only, other := services.Environment(nil, of("10.43.0.1"))
	if value(only, "KUBERNETES_SERVICE_HOST") != "10.43.0.1" || value(only, "WEB_SERVICE_HOST") != "" ||
		version == other {
		t.Errorf("without links: got %v, versions %s and %s", only, version, other)
	}
	if env, _ := services.Environment(linked, nil); value(env, "KUBERNETES_SERVICE_HOST") != "" {
		t.Errorf("without the Service of the API server: got %v", env)
	}
}

func TestAssignedPodsAreThoseOfTheServer(t *testing.T) {
	t.Parallel()
	pod := func(name, source string) *corev1.Pod {
		p := &corev1.Pod{}
		p.Name, p.Annotations = name, map[string]string{"kubernetes.io/config.source": source}
		return p
	}
	got := AssignedPods(map[types.UID]checkpoint.Record{
		"1": {Pod: pod("web", "api")}, "2": {Pod: pod("static", "file")}, "3": {},
	})
	if len(got) != 1 || got[0].Pod.Name != "web" {
		t.Errorf("got %+v", got)
	}
}
