package assigned

import (
	"context"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"berth/agent/plan"
	"berth/agent/source"
	"berth/apiclient"
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
	s.ctx, s.open, s.tell = ctx, true, func(snap source.Snapshot) { told = append(told, snap) }
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

// TestThePodsOfTheLastLifeAreToldUntilTheServerTellsItsOwn: D1.
func TestThePodsOfTheLastLifeAreToldUntilTheServerTellsItsOwn(t *testing.T) {
	t.Parallel()
	known := normal(podOf("a", "conf"))
	objects := plan.Objects{
		{Kind: plan.ConfigMap, Name: "conf"}:  {Version: plan.Version{Version: "1"}, ConfigMap: &corev1.ConfigMap{}},
		{Kind: plan.Services, Name: "linked"}: {Version: plan.Version{Version: "2"}},
	}
	s, told := away(t, Options{Known: []Known{{known, objects}}})
	s.step()
	if len(*told) > 0 {
		t.Fatal("told before the server was asked")
	}
	s.recall()
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

// TestAPodIsToldBeforeWhatItUsesIsKnown, as late at first and then as not told:
// D2.
func TestAPodIsToldBeforeWhatItUsesIsKnown(t *testing.T) {
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
	if next.IsZero() || next.After(now.Add(late)) {
		t.Errorf("looks again at %v", next)
	}
	now = now.Add(late)
	s.step()
	last := (*told)[len(*told)-1]
	if o := last.Objects[key]; len(last.Pods) != 1 || o.Missing || o.Late || o.Err == "" {
		t.Errorf("%+v", last)
	}
}

// TestAPodIsNotToldWithoutWhatItsImagesAndSandboxNeed: D2.
func TestAPodIsNotToldWithoutWhatItsImagesAndSandboxNeed(t *testing.T) {
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
			now = now.Add(late)
			s.step()
			if last := (*told)[len(*told)-1]; len(last.Pods) != 1 {
				t.Errorf("%+v", last)
			}
		})
	}
}

// TestWhatThisNodeReportedIsNoChange: D4; mirrors are never wanted: D5.
func TestWhatThisNodeReportedIsNoChange(t *testing.T) {
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

func TestServicesMakeAnEnvironment(t *testing.T) {
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

// TestTheServersOwnServiceIsWhereItIsReached: only default/kubernetes, only where
// the server says so.
func TestTheServersOwnServiceIsWhereItIsReached(t *testing.T) {
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
		svc.Namespace, svc.Name, svc.Annotations = row.namespace, row.name, map[string]string{reachedAt: row.at}
		trimService(svc)
		env := environmentOf([]*corev1.Service{svc})
		if env[0].Value != row.host || env[1].Value != row.port || env[2].Value != row.port {
			t.Errorf("%+v: %v", row, env)
		}
	}
}
