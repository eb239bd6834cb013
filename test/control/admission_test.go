package control

import (
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const plainPod = `
apiVersion: v1
kind: Pod
metadata: {name: %s, namespace: %s}
spec:
  containers: [{name: main, image: example/web, resources: {requests: {cpu: 100m}}}]
`

// TestAdmissionSetsPodDefaults applies a minimal pod and reads the fields that admission has set.
func TestAdmissionSetsPodDefaults(t *testing.T) {
	t.Parallel()
	s := Shared(t)
	s.Apply(t, fmt.Sprintf(plainPod, "web", s.Namespace))
	for path, want := range map[string]string{
		"{.spec.serviceAccountName}":                                       "default",
		"{.spec.volumes[0].projected.sources[*].serviceAccountToken.path}": "token",
		"{.spec.containers[0].volumeMounts[0].mountPath}": "/var/run/secrets/kubernetes.io/" +
			"serviceaccount",
		"{.spec.tolerations[*].key}": "node.kubernetes.io/not-ready " +
			"node.kubernetes.io/unreachable",
		"{.spec.tolerations[*].tolerationSeconds}":  "300 300",
		"{.spec.priority} {.spec.preemptionPolicy}": "0 PreemptLowerPriority",
	} {
		if got := s.Kubectl(t, "get", "pod", "web", "-o", "jsonpath="+path); got != want {
			t.Errorf("%s: got %q, want %q", path, got, want)
		}
	}
	waitForResult(t, "the CA certificate in kube-root-ca.crt", func() string {
		out, _ := s.TryKubectl(t, "", "get", "configmap", "kube-root-ca.crt", "-o", "jsonpath={.data.ca\\.crt}")
		return fmt.Sprint(strings.Contains(out, "BEGIN CERTIFICATE"))
	}, "true")
	if got := s.Kubectl(t, "get", "priorityclasses", "-o",
		"jsonpath={.items[*].metadata.name} {.items[*].value}"); got != "system-cluster-critical system-node-critical "+
		"2000000000 2000001000" {
		t.Errorf("got priority classes %q", got)
	}
	if out, err := s.TryKubectl(t, fmt.Sprintf(plainPod, "web", "nowhere"), "apply", "-f", "-"); err == nil ||
		!strings.Contains(out, `namespaces "nowhere" not found`) {
		t.Errorf("pod in a missing namespace: %s", out)
	}
}

// TestKubectlCreateToken creates a token and uses it for service account issuer discovery.
func TestKubectlCreateToken(t *testing.T) {
	t.Parallel()
	s := Shared(t)
	token := strings.TrimSpace(s.Kubectl(t, "create", "token", "default", "--duration=20m"))
	client := s.clientWithToken(t, token)
	for path, want := range map[string]string{"/.well-known/openid-configuration": s.ServiceAccountIssuer,
		"/openid/v1/jwks": `"alg":"ES256"`} {
		waitForResult(t, path, func() string {
			out, err := client.CoreV1().RESTClient().Get().AbsPath(path).DoRaw(t.Context())
			if err != nil {
				return err.Error()
			}
			return fmt.Sprint(strings.Contains(string(out), want))
		}, "true")
	}
	if _, err := client.CoreV1().Pods("default").List(t.Context(), metav1.ListOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("listing pods without a role: %v", err)
	}
	if out, err := s.TryKubectl(t, "", "create", "token", "default", "--duration=5m"); err == nil ||
		!strings.Contains(out,
			"may not specify a duration less than 10 minutes") {
		t.Errorf("token with a lifetime of five minutes: %s", out)
	}
}

// TestQuotaWithConcurrentRequests creates twenty pods concurrently with a quota of five.
func TestQuotaWithConcurrentRequests(t *testing.T) {
	t.Parallel()
	s := Shared(t)
	ctx := t.Context()
	s.Kubectl(t, "create", "quota", "few", "--hard=pods=5,requests.cpu=1,configmaps=3")
	used := func(resource string) func() string {
		return func() string {
			return s.Kubectl(t, "get", "quota", "few", "-o", "jsonpath={.status.used."+resource+"}")
		}
	}
	waitForResult(t, "usage of a new quota", used("pods"), "0")
	pod := func(name, cpu string, dryRun ...string) error {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.PodSpec{Containers: []corev1.Container{
			{Name: "main", Image: "example/web"}}}}
		if cpu != "" {
			p.Spec.Containers[0].Resources.Requests = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu)}
		}
		return errorOf(s.Client.CoreV1().Pods(s.Namespace).Create(ctx, p, metav1.CreateOptions{DryRun: dryRun}))
	}
	// The admission plugin observes the status of the quota a little later.
	eventually(t, "rejection of a pod without resources", func() (bool, string) {
		err := pod("silent", "", metav1.DryRunAll)
		return err != nil && strings.Contains(err.Error(), "failed quota: few: must specify requests.cpu for: main"),
			fmt.Sprint(err)
	})
	var created, rejected atomic.Int32
	var all sync.WaitGroup
	for i := range 20 {
		all.Go(func() {
			err := pod(fmt.Sprintf("p%d", i), "10m")
			switch {
			case err == nil:
				created.Add(1)
			case apierrors.IsForbidden(err) && strings.Contains(err.Error(),
				"exceeded quota: few, requested: pods=1, used: pods=5, limited: pods=5"):
				rejected.Add(1)
			default:
				t.Errorf("pod %d: %v", i, err)
			}
		})
	}
	all.Wait()
	if created.Load() != 5 || rejected.Load() != 15 {
		t.Errorf("got %d created and %d rejected pods, want 5 and 15", created.Load(), rejected.Load())
	}
	waitForResult(t, "the usage", used("pods"), "5")
	s.Kubectl(t, "delete", "pods", "--all", "--grace-period=0", "--force")
	waitForResult(t, "usage after deletion of all pods", used("pods"), "0")
	// The admission plugin observes the status of the quota a little later.
	eventually(t, "rejection of a pod because of its CPU request alone", func() (bool, string) {
		err := pod("big", "2")
		const want = "exceeded quota: few, requested: requests.cpu=2, used: requests.cpu=0, limited: requests.cpu=1"
		return err != nil && strings.Contains(err.Error(), want), fmt.Sprint(err)
	})
	s.Kubectl(t, "create", "configmap", "a")
	if rejected, err := s.TryKubectl(t, "", "create", "configmap", "b", "--dry-run=server"); err != nil {
		t.Errorf("dry run: %s", rejected)
	}
	s.Kubectl(t, "create", "configmap", "c") // kube-root-ca.crt is the third
	if rejected, err := s.TryKubectl(t, "", "create", "configmap", "d"); err == nil || !strings.Contains(rejected,
		"exceeded quota: few, requested: configmaps=1, used: configmaps=3, limited: configmaps=3") {
		t.Errorf("ConfigMap beyond the quota: %s", rejected)
	}
}

// TestPodSecurityLabels applies pods that violate the level of the namespace.
func TestPodSecurityLabels(t *testing.T) {
	t.Parallel()
	s := Shared(t)
	s.Kubectl(t, "label", "namespace", s.Namespace, "pod-security.kubernetes.io/enforce=baseline",
		"pod-security.kubernetes.io/warn=restricted")
	privileged := `
apiVersion: v1
kind: Pod
metadata: {name: root}
spec:
  hostNetwork: true
  containers: [{name: main, image: example/web, securityContext: {privileged: true}}]
`
	waitForResult(t, "rejection of a privileged pod", func() string {
		out, _ := s.TryKubectl(t, privileged, "apply", "-f", "-", "--dry-run=server")
		return fmt.Sprint(strings.Contains(out,
			`pods "root" is forbidden: violates PodSecurity "baseline:latest": host namespaces (hostNetwork=true)`) &&
			strings.Contains(out, `privileged (container "main" must not set securityContext.privileged=true)`))
	}, "true")
	if out := s.Apply(t, fmt.Sprintf(plainPod, "plain", s.Namespace)); !strings.Contains(out,
		`would violate PodSecurity "restricted:latest"`) {
		t.Errorf("no warning for a pod without security context: %s", out)
	}
	if out, err := s.TryKubectl(t, "", "label", "namespace", s.Namespace, "pod-security.kubernetes.io/enforce=nonsense",
		"--overwrite"); err == nil {
		t.Errorf("unknown Pod Security level was accepted: %s", out)
	}
}

// TestQuotaScopeChange updates pods so that they enter the scope of another quota.
func TestQuotaScopeChange(t *testing.T) {
	t.Parallel()
	s := Shared(t)
	for name, scope := range map[string]string{"running": "NotTerminating", "terminating": "Terminating"} {
		s.Apply(t, fmt.Sprintf(`{apiVersion: v1, kind: ResourceQuota, metadata: {name: %s}, spec: {scopes: [%s], `+
			`hard: {pods: %d}}}`,
			name, scope, map[string]int{"running": 2, "terminating": 1}[name]))
		waitForResult(t, "usage of a new quota", func() string {
			return s.Kubectl(t, "get", "quota", name, "-o",
				"jsonpath={.status.used.pods}")
		}, "0")
	}
	for _, name := range []string{"a", "b"} {
		s.Apply(t, fmt.Sprintf(plainPod, name, s.Namespace))
	}
	deadline := func(pod string, seconds int) (string, error) {
		return s.TryKubectl(t, "", "patch", "pod", pod, "-p", fmt.Sprintf(`{"spec": {"activeDeadlineSeconds": %d}}`,
			seconds))
	}
	if out, err := deadline("a", 3600); err != nil {
		t.Errorf("update within the quota was rejected: %s", out)
	}
	if out, err := deadline("b", 3600); err == nil || !strings.Contains(out,
		"exceeded quota: terminating, requested: pods=1, used: pods=1, limited: pods=1") {
		t.Errorf("update beyond the quota: got %v: %s", err, out)
	}
	if out, err := deadline("a", 1800); err != nil {
		t.Errorf("update of a pod that is already in the scope was rejected: %s", out)
	}
	waitForOutput(t, s, "1 1", "get", "quota", "running", "terminating", "-o", "jsonpath={.items[*].status.used.pods}")
}

// TestLimitRangeAppliesImmediately creates pods and claims immediately after a LimitRange. Claims that
// exceed the LimitRange and already exist can be deleted.
func TestLimitRangeAppliesImmediately(t *testing.T) {
	t.Parallel()
	s := Shared(t)
	ctx := t.Context()
	claim := func(name, size string) error {
		c := &corev1.PersistentVolumeClaim{
			ObjectMeta: metav1.ObjectMeta{Name: name, Finalizers: []string{"example.com/held"}},
			Spec: corev1.PersistentVolumeClaimSpec{
				AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
				Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{
					corev1.ResourceStorage: resource.MustParse(size)}},
			},
		}
		return errorOf(s.Client.CoreV1().PersistentVolumeClaims(s.Namespace).Create(ctx, c, metav1.CreateOptions{}))
	}
	pod := func(name string, limits corev1.ResourceList) (*corev1.Pod, error) {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec: corev1.PodSpec{Containers: []corev1.Container{{
				Name: "main", Image: "example/web", Resources: corev1.ResourceRequirements{Limits: limits},
			}}}}
		return s.Client.CoreV1().Pods(s.Namespace).Create(ctx, p, metav1.CreateOptions{})
	}
	if err := claim("early", "10Gi"); err != nil {
		t.Fatal(err)
	}
	for round := range 5 { // repeated, because the LimitRange is newer than the caches
		name := fmt.Sprint("r", round)
		amount := func(s string) corev1.ResourceList {
			return corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(s)}
		}
		r := &corev1.LimitRange{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.LimitRangeSpec{
			Limits: []corev1.LimitRangeItem{
				{Type: corev1.LimitTypeContainer, DefaultRequest: amount("100m"), Default: amount("300m"),
					Max: amount("2")},
				{Type: corev1.LimitTypePersistentVolumeClaim, Min: corev1.ResourceList{
					corev1.ResourceStorage: resource.MustParse("1Gi")},
					Max: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("5Gi")}},
			}}}
		if _, err := s.Client.CoreV1().LimitRanges(s.Namespace).Create(ctx, r, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		p, err := pod(name, nil)
		if err != nil {
			t.Fatal(err)
		}
		resources := p.Spec.Containers[0].Resources
		if resources.Requests.Cpu().String() != "100m" || resources.Limits.Cpu().String() != "300m" ||
			p.Annotations["kubernetes.io/limit-ranger"] != "LimitRanger plugin set: cpu request for "+
				"container main; cpu "+
				"limit for container main" {
			t.Errorf("new pod: got resources %v, annotations %v", resources, p.Annotations)
		}
		if round < 4 {
			s.Kubectl(t, "delete", "limitrange", name)
		}
	}
	for _, row := range []struct {
		err  error
		want string
	}{
		{errorOf(pod("big", corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("3")})),
			"maximum cpu usage per Container is 2, but limit is 3"},
		{claim("big", "6Gi"), "maximum storage usage per PersistentVolumeClaim is 5Gi, but request is 6Gi"},
		{claim("small", "500Mi"), "minimum storage usage per PersistentVolumeClaim is 1Gi, but request is 500Mi"},
		{claim("valid", "2Gi"), "<nil>"},
	} {
		if got := fmt.Sprint(row.err); !strings.Contains(got, row.want) {
			t.Errorf("got  %s\nwant %s", got, row.want)
		}
	}
	// A claim created before the LimitRange that exceeds it can still be deleted.
	s.Kubectl(t, "delete", "pvc", "early", "valid", "--wait=false")
	for _, name := range []string{"early", "valid"} {
		s.Kubectl(t, "patch", "pvc", name, "-p", `{"metadata": {"finalizers": null}}`)
	}
	waitForOutput(t, s, "", "get", "pvc", "-o", "name")
}
