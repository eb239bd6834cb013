package apiserver

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"path"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"

	"berth/agent/plan"
	"berth/agent/source"
	"berth/internal/apiclient"
)

// away is a source whose server does not answer, that is not running: tests call
// what Run would.
func away(t *testing.T, o Options) (*Source, *[]source.Snapshot) {
	t.Helper()
	c, err := apiclient.New(apiclient.Options{Config: &rest.Config{Host: "http://127.0.0.1:1"}})
	if err != nil {
		t.Fatal(err)
	}
	o.Client = c
	s := New(o)
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(func() { cancel(); s.wg.Wait() })
	var told []source.Snapshot
	s.ctx, s.nodeRegistered, s.nameUnique, s.emit = ctx, true, true, func(snap source.Snapshot) { told = append(told, snap) }
	return s, &told
}

func podOf(uid types.UID, configMap string) *corev1.Pod {
	pod := &corev1.Pod{}
	pod.UID, pod.Namespace, pod.Name, pod.Generation = uid, "default", string(uid), 1
	c := corev1.Container{Name: "c", Image: "i"}
	if configMap != "" {
		c.EnvFrom = []corev1.EnvFromSource{{ConfigMapRef: &corev1.ConfigMapEnvSource{LocalObjectReference: corev1.LocalObjectReference{Name: configMap}}}}
	}
	pod.Spec.Containers = []corev1.Container{c}
	return pod
}

// TestPreviousPodsUntilListSucceeds: D1.
func TestPreviousPodsUntilListSucceeds(t *testing.T) {
	t.Parallel()
	known := normalize(podOf("a", "conf"))
	objects := plan.Objects{
		{Kind: plan.ConfigMap, Name: "conf"}:  {Version: plan.Version{Version: "1"}, ConfigMap: &corev1.ConfigMap{}},
		{Kind: plan.Services, Name: "linked"}: {Version: plan.Version{Version: "2"}},
	}
	s, told := away(t, Options{PreviousPods: []PreviousPod{{known, objects}}})
	s.step()
	if len(*told) > 0 {
		t.Fatal("told before the server was asked")
	}
	s.restorePrevious()
	s.step()
	if len(*told) != 1 || (*told)[0].Ready || len((*told)[0].Pods) != 1 {
		t.Fatalf("%+v", *told)
	}
	key := source.ObjectKey{Kind: plan.ConfigMap, NamespacedName: types.NamespacedName{Namespace: "default", Name: "conf"}}
	if (*told)[0].Objects[key].ConfigMap == nil {
		t.Error("what the pod uses is not told")
	}
	s.synced([]runtime.Object{podOf("b", "")})
	s.services.read = true
	s.environments()
	s.step()
	last := (*told)[len(*told)-1]
	if !last.Ready || len(last.Pods) != 1 || last.Pods[0].UID != "b" {
		t.Errorf("%+v", last)
	}
	if len(last.Objects) != 1 { // the services of b
		t.Errorf("what nobody uses is still followed: %v", last.Objects)
	}
}

// wants tells whether a snapshot is ready or not and has these pods, in order.
func wants(snap source.Snapshot, ready bool, pods ...types.UID) bool {
	return snap.Ready == ready && slices.EqualFunc(snap.Pods, pods, func(p *corev1.Pod, uid types.UID) bool { return p.UID == uid })
}

// TestPreviousPodsUntilNodeIsRegistered: D1. Those that the server has not
// any more are not, and those that it has deleted since are told no longer.
func TestPreviousPodsUntilNodeIsRegistered(t *testing.T) {
	t.Parallel()
	known := func() (out []PreviousPod) {
		for _, uid := range []types.UID{"a", "b", "gone"} {
			out = append(out, PreviousPod{normalize(podOf(uid, "")), plan.Objects{}})
		}
		return out
	}
	has := []runtime.Object{podOf("a", ""), podOf("b", ""), podOf("new", "")}
	for name, first := range map[string]func(s *Source){
		"it tells them at once": func(s *Source) { s.synced(has); s.step(); s.waitExpired = true; s.restorePrevious() },
		"it tells them late":    func(s *Source) { s.waitExpired = true; s.restorePrevious(); s.step(); s.synced(has) },
		"it tells them again":   func(s *Source) { s.synced(has); s.synced(has); s.waitExpired = true; s.restorePrevious() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, told := away(t, Options{PreviousPods: known()})
			s.nodeRegistered, s.services.read = false, true
			last := func() source.Snapshot { s.step(); return (*told)[len(*told)-1] }
			first(s)
			if got := last(); !wants(got, false, "a", "b") {
				t.Errorf("the node is not told: %+v", got)
			}
			s.remove(podOf("b", ""))
			s.put(podOf("newer", ""))
			if got := last(); !wants(got, false, "a") {
				t.Errorf("one is deleted: %+v", got)
			}
			s.nodeRegistered, s.dirty = true, true
			if got := last(); !wants(got, true, "a", "new", "newer") {
				t.Errorf("the node is told: %+v", got)
			}
		})
	}
}

// TestReachableServerDelaysPreviousPods until it tells the node, for a while: D1. For
// as long as another may be alive under the node's name it does.
func TestReachableServerDelaysPreviousPods(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		node, alone := make(chan struct{}), make(chan struct{})
		s := New(Options{
			Client: answering(t, podOf("a", ""), podOf("new", "")), NodeName: "n", NodeRegistered: node, NameUnique: alone,
			PreviousPods: []PreviousPod{{normalize(podOf("a", "")), plan.Objects{}}},
		})
		ctx, cancel := context.WithCancel(t.Context())
		var told []source.Snapshot
		ended := make(chan error)
		go func() { ended <- s.Run(ctx, func(snap source.Snapshot) { told = append(told, snap) }) }()
		time.Sleep(2 * serverTimeout)
		synctest.Wait()
		if len(told) > 0 {
			t.Errorf("another may be alive under the name, and %d are told", len(told))
		}
		close(alone)
		synctest.Wait()
		if len(told) == 0 || !wants(told[len(told)-1], false, "a") {
			t.Errorf("the name is settled: %d are told", len(told))
		}
		close(node)
		synctest.Wait()
		if len(told) == 0 || !wants(told[len(told)-1], true, "a", "new") {
			t.Errorf("the node is told: %d are told", len(told))
		}
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

// server tells everybody who watches the pods that it has, and no changes.
type server []*corev1.Pod

func answering(t *testing.T, pods ...*corev1.Pod) *apiclient.Client {
	t.Helper()
	c, err := apiclient.New(apiclient.Options{Config: &rest.Config{
		Host: "http://192.0.2.1", WrapTransport: func(http.RoundTripper) http.RoundTripper { return server(pods) },
	}})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func (s server) RoundTrip(r *http.Request) (*http.Response, error) {
	of := map[string]runtime.Object{"pods": &corev1.Pod{}, "services": &corev1.Service{}, "runtimeclasses": &nodev1.RuntimeClass{}}[path.Base(r.URL.Path)]
	if of == nil {
		return &http.Response{StatusCode: http.StatusNotFound, Body: http.NoBody, Request: r}, nil
	}
	told := &bytes.Buffer{}
	say := func(kind string, o runtime.Object) {
		gvks, _, err := scheme.Scheme.ObjectKinds(o)
		o = o.DeepCopyObject()
		o.GetObjectKind().SetGroupVersionKind(gvks[0])
		o.(metav1.Object).SetResourceVersion("1")
		if err == nil {
			err = json.NewEncoder(told).Encode(map[string]any{"type": kind, "object": o})
		}
		if err != nil {
			panic(err)
		}
	}
	if _, pods := of.(*corev1.Pod); pods {
		for _, pod := range s {
			say("ADDED", pod)
		}
	}
	of.(metav1.Object).SetAnnotations(map[string]string{metav1.InitialEventsAnnotationKey: "true"})
	say("BOOKMARK", of)
	silent, end := io.Pipe()
	context.AfterFunc(r.Context(), func() { end.Close() })
	body := struct {
		io.Reader
		io.Closer
	}{io.MultiReader(told, silent), silent}
	return &http.Response{StatusCode: http.StatusOK, Header: http.Header{"Content-Type": {runtime.ContentTypeJSON}}, Body: body, Request: r}, nil
}

// TestPodIsEmittedBeforeItsObjects, as late at first and then as not told:
// D2.
func TestPodIsEmittedBeforeItsObjects(t *testing.T) {
	t.Parallel()
	now := time.Now()
	s, told := away(t, Options{Now: func() time.Time { return now }})
	s.services.read = true
	s.synced([]runtime.Object{podOf("a", "conf")})
	next := s.step()
	key := source.ObjectKey{Kind: plan.ConfigMap, NamespacedName: types.NamespacedName{Namespace: "default", Name: "conf"}}
	if len(*told) != 1 || len((*told)[0].Pods) != 1 || !(*told)[0].Objects[key].Late {
		t.Fatalf("%+v", *told)
	}
	if next.IsZero() || next.After(now.Add(objectTimeout)) {
		t.Errorf("looks again at %v", next)
	}
	now = now.Add(objectTimeout)
	s.step()
	last := (*told)[len(*told)-1]
	if o := last.Objects[key]; len(last.Pods) != 1 || o.Missing || o.Late || o.Err == "" {
		t.Errorf("%+v", last)
	}
}

// TestPodWaitsForSandboxObjects: D2.
func TestPodWaitsForSandboxObjects(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]func(*corev1.PodSpec){
		"pull secret":   func(s *corev1.PodSpec) { s.ImagePullSecrets = []corev1.LocalObjectReference{{Name: "pull"}} },
		"runtime class": func(s *corev1.PodSpec) { class := "gvisor"; s.RuntimeClassName = &class },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			now := time.Now()
			s, told := away(t, Options{Now: func() time.Time { return now }})
			s.services.read = true
			pod := podOf("a", "")
			want(&pod.Spec)
			s.synced([]runtime.Object{pod})
			s.step()
			if len(*told) != 1 || len((*told)[0].Pods) != 0 {
				t.Fatalf("%+v", *told)
			}
			now = now.Add(objectTimeout)
			s.step()
			if last := (*told)[len(*told)-1]; len(last.Pods) != 1 {
				t.Errorf("%+v", last)
			}
		})
	}
}

// TestOwnStatusUpdateIsNotAChange: D4; mirrors are never wanted: D5.
func TestOwnStatusUpdateIsNotAChange(t *testing.T) {
	t.Parallel()
	s, told := away(t, Options{})
	s.services.read = true
	s.synced([]runtime.Object{podOf("a", "")})
	s.step()
	was := (*told)[0].Pods[0]
	same := podOf("a", "")
	same.ResourceVersion = "9"
	same.Status.Phase, same.Status.Conditions = corev1.PodRunning, []corev1.PodCondition{{Type: corev1.PodReady, Status: "True"}}
	s.put(same)
	if s.step(); len(*told) != 1 {
		t.Error("a report of this node is told as a change")
	}
	gate := podOf("a", "")
	gate.Status.Conditions = []corev1.PodCondition{{Type: "example.com/gate", Status: "True"}}
	s.put(gate)
	mirror := podOf("m", "")
	mirror.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: "h"}
	s.put(mirror)
	s.step()
	last := (*told)[len(*told)-1]
	if len(last.Pods) != 1 || last.Pods[0] == was {
		t.Errorf("%+v", last.Pods)
	}
	at := metav1.Now()
	gate = gate.DeepCopy()
	gate.DeletionTimestamp = &at
	s.put(gate)
	s.step()
	if last := (*told)[len(*told)-1]; last.Pods[0].DeletionTimestamp == nil {
		t.Error("a deletion is not told")
	}
}

func TestServiceEnvironment(t *testing.T) {
	t.Parallel()
	svc := &corev1.Service{Spec: corev1.ServiceSpec{ClusterIP: "10.0.0.5", Ports: []corev1.ServicePort{{Name: "http-alt", Port: 80}, {Port: 53, Protocol: corev1.ProtocolUDP}}}}
	svc.Name = "my-web"
	headless := &corev1.Service{Spec: corev1.ServiceSpec{ClusterIP: corev1.ClusterIPNone, Ports: svc.Spec.Ports}}
	var got []string
	for _, v := range environmentOf([]*corev1.Service{svc, headless}) {
		got = append(got, v.Name+"="+v.Value)
	}
	want := []string{
		"MY_WEB_SERVICE_HOST=10.0.0.5", "MY_WEB_SERVICE_PORT=80", "MY_WEB_SERVICE_PORT_HTTP_ALT=80", "MY_WEB_PORT=tcp://10.0.0.5:80",
		"MY_WEB_PORT_80_TCP=tcp://10.0.0.5:80", "MY_WEB_PORT_80_TCP_PROTO=tcp", "MY_WEB_PORT_80_TCP_PORT=80", "MY_WEB_PORT_80_TCP_ADDR=10.0.0.5",
		"MY_WEB_PORT_53_UDP=udp://10.0.0.5:53", "MY_WEB_PORT_53_UDP_PROTO=udp", "MY_WEB_PORT_53_UDP_PORT=53", "MY_WEB_PORT_53_UDP_ADDR=10.0.0.5",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got %v", got)
	}
}

// TestKubernetesServiceAddress: only default/kubernetes, only where
// the server says so.
func TestKubernetesServiceAddress(t *testing.T) {
	t.Parallel()
	for _, row := range []struct{ namespace, name, at, host, port string }{
		{"default", "kubernetes", "", "10.43.0.1", "443"},
		{"default", "kubernetes", "192.0.2.1:6443,192.0.2.2:6443", "192.0.2.1", "6443"},
		{"default", "kubernetes", "[fd00::1]:6443", "fd00::1", "6443"},
		{"default", "kubernetes", "nonsense", "10.43.0.1", "443"},
		{"other", "kubernetes", "192.0.2.1:6443", "10.43.0.1", "443"},
		{"default", "web", "192.0.2.1:6443", "10.43.0.1", "443"},
	} {
		svc := &corev1.Service{Spec: corev1.ServiceSpec{ClusterIP: "10.43.0.1", Ports: []corev1.ServicePort{{Name: "https", Port: 443}}}}
		svc.Namespace, svc.Name, svc.Annotations = row.namespace, row.name, map[string]string{reachedAtAnnotation: row.at}
		trimService(svc)
		env := environmentOf([]*corev1.Service{svc})
		if env[0].Value != row.host || env[1].Value != row.port || env[2].Value != row.port {
			t.Errorf("%+v: %v", row, env)
		}
	}
}
