package admission

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authentication/user"
)

func TestNamesOfPluginsAreChecked(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		enabled, disabled []string
		want              string
	}{
		{[]string{"AlwaysPullImages"}, []string{"PodSecurity"}, ""},
		{[]string{"Nonsense"}, nil, `enable-admission-plugins plugin "Nonsense" is unknown`},
		{nil, []string{"Nonsense"}, `disable-admission-plugins plugin "Nonsense" is unknown`},
		{[]string{"PodSecurity"}, []string{"PodSecurity"},
			"[PodSecurity] in enable-admission-plugins and disable-admission-plugins overlapped"},
		{nil, []string{"RoleEscalation"}, ""},
	} {
		if err := ValidateNames(c.enabled, c.disabled); c.want == "" && err != nil ||
			c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("enabled %v, disabled %v: got %v, want %q", c.enabled, c.disabled, err, c.want)
		}
	}
}

// TestMandatoryPluginsCannotBeDisabled: without them, users could grant themselves permissions.
func TestMandatoryPluginsCannotBeDisabled(t *testing.T) {
	t.Parallel()
	c := newTestConfig(t)
	c.Disabled = slices.Concat(Names(), mandatory)
	all, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	if !all.Handles(admission.Create) {
		t.Error("no plugin runs")
	}
	if w := Warnings(nil, c.Disabled); len(w) != 2 || !strings.Contains(w[0], "RoleEscalation is deprecated") {
		t.Errorf("got warnings %q", w)
	}
}

const admissionHead = "apiVersion: apiserver.config.k8s.io/v1\nkind: AdmissionConfiguration\nplugins:\n"

const eventLimits = `- name: EventRateLimit
  configuration:
    apiVersion: eventratelimit.admission.k8s.io/v1alpha1
    kind: Configuration
    limits: [{type: Namespace, qps: 1, burst: 2}, {type: Server, qps: 100, burst: 100}]
`

func readConfigurations(t *testing.T, text string) (Configurations, error) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "admission.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return ReadConfigurations(path)
}

// TestConfigurationErrorsNameThePluginAndTheField creates the chain with files that contain an error.
func TestConfigurationErrorsNameThePluginAndTheField(t *testing.T) {
	t.Parallel()
	podSecurity := "- name: PodSecurity\n  configuration:\n    apiVersion: pod-security.admission.config.k8s.io/v1\n" +
		"    kind: PodSecurityConfiguration\n"
	limits := strings.SplitAfter(eventLimits, "limits: ")[0]
	for _, c := range []struct{ name, text, want string }{
		{"valid", admissionHead + podSecurity + "    defaults: {enforce: baseline}\n" + eventLimits, ""},
		{"unknown field", admissionHead + "- {name: PodSecurity, config: {}}\n", `unknown field "plugins[0].config"`},
		{"no configuration", admissionHead + "- {name: ServiceAccount}\n", "plugins[0].name"},
		{"missing file", admissionHead + "- {name: PodSecurity, path: absent.yaml}\n", "plugins[0].path: open"},
		{"level", admissionHead + podSecurity + "    defaults: {enforce: secret}\n" + eventLimits,
			"admission plugin PodSecurity: defaults.enforce: Invalid value"},
		{"no limits", admissionHead + limits + "[]\n", "admission plugin EventRateLimit: limits: Invalid value"},
		{"limit type", admissionHead + limits + "[{type: Pod, qps: 1, burst: 1}]\n",
			"limits[0].type: Unsupported value"},
		{"burst", admissionHead + limits + "[{type: User, qps: 1}]\n", "limits[0].burst: Invalid value"},
		{"qps", admissionHead + limits + "[{type: User, burst: 1}]\n", "limits[0].qps: Invalid value"},
		{"cache", admissionHead + limits + "[{type: User, burst: 1, qps: 1, cacheSize: -1}]\n", "limits[0].cacheSize"},
		{"limit field", admissionHead + limits + "[{type: User, rate: 1}]\n", `unknown field "rate"`},
		{"webhooks", admissionHead + "- name: ValidatingAdmissionWebhook\n  configuration: {apiVersion: " +
			"apiserver.config.k8s.io/v1, kind: WebhookAdmissionConfiguration, kubeConfigFile: /absent}\n" + eventLimits,
			"admission plugin ValidatingAdmissionWebhook: kubeConfigFile"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			config := newTestConfig(t)
			config.Enabled = []string{"EventRateLimit"}
			var err error
			if config.Configurations, err = readConfigurations(t, c.text); err == nil {
				_, err = New(config)
			}
			if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("got error %v, want %q", err, c.want)
			}
		})
	}
}

func requestOf(object, old runtime.Object, resource, namespace, subresource string,
	operation admission.Operation) admission.Attributes {
	return admission.NewAttributesRecord(object, old, corev1.SchemeGroupVersion.WithKind("K"), namespace, "x",
		corev1.SchemeGroupVersion.WithResource(resource), subresource, operation, nil, false,
		&user.DefaultInfo{Name: "ann"})
}

// TestEventRateLimit exceeds the limit of a namespace. Other namespaces are not affected.
func TestEventRateLimit(t *testing.T) {
	t.Parallel()
	config := newTestConfig(t)
	var err error
	if config.Configurations, err = readConfigurations(t, admissionHead+eventLimits); err != nil {
		t.Fatal(err)
	}
	p, err := newEventRateLimit(config)
	if err != nil {
		t.Fatal(err)
	}
	send := func(object runtime.Object, namespace string) error {
		return p.(admission.ValidationInterface).Validate(t.Context(),
			requestOf(object, nil, "events", namespace, "", admission.Create), nil)
	}
	var limited error
	for range 50 { // one more per second is accepted
		if limited = send(&corev1.Event{}, "a"); limited != nil {
			break
		}
	}
	if !apierrors.IsTooManyRequests(limited) ||
		!strings.Contains(limited.Error(), "limit reached on type Namespace for key a") {
		t.Errorf("got %v", limited)
	}
	if err := send(&corev1.Event{}, "b"); err != nil {
		t.Errorf("other namespace: %v", err)
	}
	if err := send(&corev1.Pod{}, "a"); err != nil {
		t.Errorf("other kind: %v", err)
	}
}

func TestSourceAndObjectKey(t *testing.T) {
	t.Parallel()
	key := func(change func(*corev1.Event)) string {
		e := &corev1.Event{Source: corev1.EventSource{Component: "c"},
			InvolvedObject: corev1.ObjectReference{Kind: "Pod", Name: "p"}}
		change(e)
		return sourceAndObjectKey(requestOf(e, nil, "events", "a", "", admission.Create))
	}
	same := key(func(*corev1.Event) {})
	if other := key(func(e *corev1.Event) { e.Reason = "r" }); other != same {
		t.Errorf("got keys %q and %q for the same object", same, other)
	}
	if other := key(func(e *corev1.Event) { e.InvolvedObject.Name = "q" }); other == same {
		t.Errorf("got key %q for two objects", same)
	}
}

func TestAlwaysPullImages(t *testing.T) {
	t.Parallel()
	p := newTestPlugin(t, newAlwaysPullImages, Config{})
	pod := &corev1.Pod{Spec: corev1.PodSpec{
		InitContainers: []corev1.Container{{Image: "i"}},
		Containers:     []corev1.Container{{Image: "a", ImagePullPolicy: corev1.PullNever}},
		Volumes: []corev1.Volume{{VolumeSource: corev1.VolumeSource{Image: &corev1.ImageVolumeSource{
			Reference: "v"}}}},
	}}
	if _, err := admitPod(t, p, pod); err != nil {
		t.Fatal(err)
	}
	if pod.Spec.InitContainers[0].ImagePullPolicy != corev1.PullAlways ||
		pod.Spec.Containers[0].ImagePullPolicy != corev1.PullAlways ||
		pod.Spec.Volumes[0].Image.PullPolicy != corev1.PullAlways {
		t.Errorf("got %+v", pod.Spec)
	}
	pod.Spec.Containers[0].ImagePullPolicy = corev1.PullNever
	validate := p.(admission.ValidationInterface).Validate
	if err := validate(t.Context(), requestOf(pod, nil, "pods", "ns", "", admission.Create), nil); err == nil ||
		!strings.Contains(err.Error(), "spec.containers[0].imagePullPolicy: Unsupported value") {
		t.Errorf("changed by a later plugin: got %v", err)
	}
	if err := validate(t.Context(), requestOf(pod, pod.DeepCopy(), "pods", "ns", "", admission.Update),
		nil); err != nil {
		t.Errorf("update without a new image: %v", err)
	}
}

func TestDenyServiceExternalIPs(t *testing.T) {
	t.Parallel()
	p := newTestPlugin(t, newDenyServiceExternalIPs, Config{})
	service := func(ips ...string) *corev1.Service {
		return &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "x"}, Spec: corev1.ServiceSpec{ExternalIPs: ips}}
	}
	validate := func(now, old *corev1.Service, operation admission.Operation) error {
		return p.(admission.ValidationInterface).Validate(t.Context(),
			requestOf(now, old, "services", "ns", "", operation), nil)
	}
	if err := validate(service(), nil, admission.Create); err != nil {
		t.Error(err)
	}
	if err := validate(service("192.0.2.1"), nil, admission.Create); !apierrors.IsForbidden(err) {
		t.Errorf("new external IP: got %v", err)
	}
	if err := validate(service("192.0.2.1"), service("192.0.2.1", "192.0.2.2"), admission.Update); err != nil {
		t.Errorf("fewer external IPs: %v", err)
	}
	if err := validate(service("192.0.2.3"), service("192.0.2.1"), admission.Update); !apierrors.IsForbidden(err) {
		t.Errorf("another external IP: got %v", err)
	}
}

// FuzzConfigurations checks that only known plugins get a configuration, and that no limit of events is zero.
func FuzzConfigurations(f *testing.F) {
	for _, seed := range []string{admissionHead + eventLimits, admissionHead + "- {name: PodSecurity}\n",
		admissionHead + "- {name: PodSecurity, path: ../x}\n", admissionHead, ""} {
		f.Add([]byte(seed))
	}
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, text []byte) {
		all, err := parseConfigurations(text, dir)
		if err != nil {
			return
		}
		for name := range all {
			if !slices.Contains(configurable, name) {
				t.Errorf("got a configuration of %q", name)
			}
		}
		p, err := newEventRateLimit(Config{Configurations: all})
		if err != nil {
			return
		}
		for _, e := range p.(*eventRateLimit).enforcers {
			if e.limit.QPS <= 0 || e.limit.Burst <= 0 {
				t.Errorf("got limit %+v", e.limit)
			}
		}
	})
}
