package admission

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/plugin/resourcequota"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/cache"

	"berth/control/authz"
)

// newTestConfig returns a Config whose caches and fake API server hold the objects.
func newTestConfig(t *testing.T, objects ...runtime.Object) Config {
	t.Helper()
	client := fake.NewClientset(objects...)
	f := informers.NewSharedInformerFactory(client, 0)
	c := Config{Client: client, Informers: f, Drained: t.Context().Done(), Audience: "us"}
	c.RBAC = authz.NewRBAC(f)
	c.Authorizer = c.RBAC
	indexes := map[string]cache.Indexer{
		"*v1.LimitRange":         f.Core().V1().LimitRanges().Informer().GetIndexer(),
		"*v1.ServiceAccount":     f.Core().V1().ServiceAccounts().Informer().GetIndexer(),
		"*v1.PriorityClass":      f.Scheduling().V1().PriorityClasses().Informer().GetIndexer(),
		"*v1.RuntimeClass":       f.Node().V1().RuntimeClasses().Informer().GetIndexer(),
		"*v1.Node":               f.Core().V1().Nodes().Informer().GetIndexer(),
		"*v1.ClusterRole":        f.Rbac().V1().ClusterRoles().Informer().GetIndexer(),
		"*v1.ClusterRoleBinding": f.Rbac().V1().ClusterRoleBindings().Informer().GetIndexer(),
	}
	for _, o := range objects {
		if err := indexes[fmt.Sprintf("%T", o)].Add(o); err != nil {
			t.Fatal(err)
		}
	}
	return c
}

func newTestPlugin(t *testing.T, newPlugin func(Config) (admission.Interface, error), c Config) admission.Interface {
	t.Helper()
	p, err := newPlugin(c)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// admitPod runs the plugin on a new pod and returns the pod and the error.
func admitPod(t *testing.T, p admission.Interface, pod *corev1.Pod) (*corev1.Pod, error) {
	t.Helper()
	pod.Name, pod.Namespace = "p", "ns"
	a := admission.NewAttributesRecord(pod, nil, corev1.SchemeGroupVersion.WithKind("Pod"), "ns", "p",
		corev1.SchemeGroupVersion.WithResource("pods"), "",
		admission.Create, &metav1.CreateOptions{}, false, &user.DefaultInfo{Name: "ann"})
	if m, ok := p.(admission.MutationInterface); ok {
		if err := m.Admit(t.Context(), a, nil); err != nil {
			return pod, err
		}
	}
	if v, ok := p.(admission.ValidationInterface); ok {
		return pod, v.Validate(t.Context(), a, nil)
	}
	return pod, nil
}

func resources(pairs ...string) corev1.ResourceList {
	out := corev1.ResourceList{}
	for i := 0; i < len(pairs); i += 2 {
		out[corev1.ResourceName(pairs[i])] = resource.MustParse(pairs[i+1])
	}
	return out
}

func podWith(requests, limits corev1.ResourceList) *corev1.Pod {
	return &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c",
		Resources: corev1.ResourceRequirements{Requests: requests, Limits: limits}}}}}
}

func TestLimitRangerDefaultsAndBounds(t *testing.T) {
	t.Parallel()
	container := corev1.LimitRangeItem{
		Type: corev1.LimitTypeContainer, Default: resources("cpu", "500m", "memory", "256Mi"),
		DefaultRequest: resources("cpu", "100m"),
		Min:            resources("cpu", "50m"), Max: resources("cpu", "2"),
		MaxLimitRequestRatio: resources("cpu", "10"),
	}
	p := newTestPlugin(t, newLimitRanger, newTestConfig(t,
		&corev1.LimitRange{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "a"}, Spec: corev1.LimitRangeSpec{
			Limits: []corev1.LimitRangeItem{container}}},
		&corev1.LimitRange{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "b"}, Spec: corev1.LimitRangeSpec{
			Limits: []corev1.LimitRangeItem{{Type: corev1.LimitTypePod, Max: resources("memory", "1Gi")}}}},
	))
	pod, err := admitPod(t, p, podWith(nil, nil))
	if err != nil {
		t.Fatalf("pod without resources: %v", err)
	}
	got := pod.Spec.Containers[0].Resources
	if !equality.Semantic.DeepEqual(got.Requests, resources("cpu", "100m", "memory", "256Mi")) ||
		!equality.Semantic.DeepEqual(got.Limits, resources("cpu", "500m", "memory", "256Mi")) {
		t.Errorf("got default requests %v, limits %v", got.Requests, got.Limits)
	}
	if got := pod.Annotations[limitRangerAnnotation]; got != "LimitRanger plugin set: cpu, memory request for "+
		"container c; cpu, memory limit for container c" {
		t.Errorf("got annotation %q", got)
	}
	if pod, err = admitPod(t, p, podWith(nil, resources("cpu", "1"))); err != nil ||
		pod.Spec.Containers[0].Resources.Requests.Cpu().String() != "1" {
		t.Errorf("limit without request: got request %v, %v", pod.Spec.Containers[0].Resources.Requests, err)
	}
	for _, row := range []struct {
		pod  *corev1.Pod
		want string
	}{
		{podWith(resources("cpu", "1"), resources("cpu", "3")),
			`pods "p" is forbidden: maximum cpu usage per Container is 2, but limit is 3`},
		{podWith(resources("cpu", "10m"), resources("cpu", "20m")),
			`pods "p" is forbidden: [minimum cpu usage per Container is 50m, but request is 10m, ` +
				`minimum cpu usage per Container is 50m, but limit is 20m]`},
		{podWith(resources("cpu", "50m"), resources("cpu", "2")),
			`pods "p" is forbidden: cpu max limit to request ratio per Container is 10, but provided ratio ` +
				`is 40.000000`},
		{podWith(resources("memory", "1Gi"), resources("memory", "2Gi")),
			`pods "p" is forbidden: maximum memory usage per Pod is 1Gi, but limit is 2Gi`},
	} {
		if _, err := admitPod(t, p, row.pod); err == nil || err.Error() != row.want {
			t.Errorf("got  %v\nwant %s", err, row.want)
		}
	}
}

func TestServiceAccountMountsTokenVolume(t *testing.T) {
	t.Parallel()
	no := false
	p := newTestPlugin(t, newServiceAccounts, newTestConfig(t,
		&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "default"},
			ImagePullSecrets: []corev1.LocalObjectReference{{Name: "pull"}}},
		&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "no-automount"},
			AutomountServiceAccountToken: &no},
	))
	pod, err := admitPod(t, p, &corev1.Pod{Spec: corev1.PodSpec{
		InitContainers: []corev1.Container{{Name: "i"}},
		Containers: []corev1.Container{{Name: "c"}, {Name: "own", VolumeMounts: []corev1.VolumeMount{{Name: "mine",
			MountPath: tokenPath}}}},
	}})
	if err != nil {
		t.Fatal(err)
	}
	spec := pod.Spec
	if spec.ServiceAccountName != "default" || spec.DeprecatedServiceAccount != "default" ||
		len(spec.ImagePullSecrets) != 1 || len(spec.Volumes) != 1 {
		t.Fatalf("got pod %+v", spec)
	}
	name := spec.Volumes[0].Name
	if !strings.HasPrefix(name, "kube-api-access-") || len(spec.Volumes[0].Projected.Sources) != 3 {
		t.Errorf("got volume %+v", spec.Volumes[0])
	}
	if m := spec.InitContainers[0].VolumeMounts; len(m) != 1 || m[0].Name != name || !m[0].ReadOnly {
		t.Errorf("got init container mounts %+v", m)
	}
	if m := spec.Containers[1].VolumeMounts; len(m) != 1 || m[0].Name != "mine" {
		t.Errorf("container with its own mount: got %+v", m)
	}
	if pod, err := admitPod(t, p, &corev1.Pod{Spec: corev1.PodSpec{ServiceAccountName: "no-automount",
		Containers: []corev1.Container{{Name: "c"}}}}); err != nil || len(pod.Spec.Volumes) != 0 {
		t.Errorf("account without automount: %+v, %v", pod.Spec.Volumes, err)
	}
	if _, err := admitPod(t, p, &corev1.Pod{Spec: corev1.PodSpec{ServiceAccountName: "none"}}); err == nil ||
		!strings.Contains(err.Error(), `error looking up service account ns/none: serviceaccounts "none" not found`) {
		t.Errorf("missing account: %v", err)
	}
	mirror := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{
		corev1.MirrorPodAnnotationKey: "1"}}}
	if pod, err := admitPod(t, p, mirror); err != nil || pod.Spec.ServiceAccountName != "" {
		t.Errorf("mirror pod: %+v, %v", pod.Spec, err)
	}
}

func TestDefaultTolerationsAreAddedOnce(t *testing.T) {
	t.Parallel()
	p := newTestPlugin(t, newTolerations, Config{})
	for _, row := range []struct {
		have []corev1.Toleration
		want int
	}{
		{nil, 2},
		{[]corev1.Toleration{{Operator: corev1.TolerationOpExists}}, 1},
		{[]corev1.Toleration{{Key: corev1.TaintNodeNotReady, Operator: corev1.TolerationOpExists}}, 2},
		{[]corev1.Toleration{{Key: corev1.TaintNodeNotReady, Effect: corev1.TaintEffectNoSchedule}}, 3},
	} {
		pod, err := admitPod(t, p, &corev1.Pod{Spec: corev1.PodSpec{Tolerations: row.have}})
		if err != nil || len(pod.Spec.Tolerations) != row.want {
			t.Errorf("tolerations %+v: got %+v, %v", row.have, pod.Spec.Tolerations, err)
		}
	}
}

func TestPriorityResolvesClass(t *testing.T) {
	t.Parallel()
	never := corev1.PreemptNever
	named := func(name string, value int32, byDefault bool) *schedulingv1.PriorityClass {
		return &schedulingv1.PriorityClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Value: value,
			GlobalDefault:    byDefault,
			PreemptionPolicy: &never}
	}
	p := newTestPlugin(t, newPriority, newTestConfig(t, named("high", 1000, false), named("default-class", 7, true)))
	pod := func(class string, value *int32) *corev1.Pod {
		return &corev1.Pod{Spec: corev1.PodSpec{PriorityClassName: class, Priority: value}}
	}
	if got, err := admitPod(t, p, pod("high", nil)); err != nil || *got.Spec.Priority != 1000 ||
		*got.Spec.PreemptionPolicy != never {
		t.Errorf("class high: %+v, %v", got.Spec, err)
	}
	if got, err := admitPod(t, p, pod("", nil)); err != nil || *got.Spec.Priority != 7 ||
		got.Spec.PriorityClassName != "default-class" {
		t.Errorf("default class: %+v, %v", got.Spec, err)
	}
	nine := int32(9)
	if _, err := admitPod(t, p, pod("high", &nine)); err == nil || !strings.Contains(err.Error(),
		"the integer value of priority (9) must not be provided in pod spec; priority admission controller "+
			"computed 1000 "+
			"from the given PriorityClass name") {
		t.Errorf("explicit priority: %v", err)
	}
	updated, old := pod("high", nil), pod("high", &nine)
	old.Spec.PreemptionPolicy = &never
	m, ok := p.(admission.MutationInterface)
	if !ok {
		t.Fatal("the plugin does not mutate")
	}
	if err := m.Admit(t.Context(), admission.NewAttributesRecord(updated, old,
		corev1.SchemeGroupVersion.WithKind("Pod"),
		"ns", "p", corev1.SchemeGroupVersion.WithResource("pods"), "",
		admission.Update, &metav1.UpdateOptions{}, false, &user.DefaultInfo{Name: "ann"}), nil); err != nil ||
		updated.Spec.Priority != &nine || updated.Spec.PreemptionPolicy != &never {
		t.Errorf("update without the fields: %+v, %v", updated.Spec, err)
	}
	if _, err := admitPod(t, p, pod("none", nil)); err == nil || !strings.Contains(err.Error(),
		"no PriorityClass with name none was found") {
		t.Errorf("missing class: %v", err)
	}
	if got, err := admitPod(t, newTestPlugin(t, newPriority, newTestConfig(t)), pod("", nil)); err != nil ||
		*got.Spec.Priority != 0 || *got.Spec.PreemptionPolicy != corev1.PreemptLowerPriority {
		t.Errorf("without classes: %+v, %v", got.Spec, err)
	}
}

func TestRuntimeClassSetsOverhead(t *testing.T) {
	t.Parallel()
	p := newTestPlugin(t, newRuntimeClasses, newTestConfig(t, &nodev1.RuntimeClass{
		ObjectMeta: metav1.ObjectMeta{Name: "vm"}, Handler: "kata",
		Overhead: &nodev1.Overhead{PodFixed: resources("memory",
			"64Mi")},
		Scheduling: &nodev1.Scheduling{NodeSelector: map[string]string{"kvm": "yes"}, Tolerations: []corev1.Toleration{
			{Key: "vm"}}},
	}))
	vm, none := "vm", "none"
	got, err := admitPod(t, p, &corev1.Pod{Spec: corev1.PodSpec{RuntimeClassName: &vm}})
	if err != nil || got.Spec.Overhead.Memory().String() != "64Mi" || got.Spec.NodeSelector["kvm"] != "yes" ||
		len(got.Spec.Tolerations) != 1 {
		t.Errorf("got pod %+v, %v", got.Spec, err)
	}
	for _, row := range []struct {
		spec corev1.PodSpec
		want string
	}{
		{corev1.PodSpec{RuntimeClassName: &none}, `pod rejected: RuntimeClass "none" not found`},
		{corev1.PodSpec{RuntimeClassName: &vm, Overhead: resources("memory", "1Mi")},
			"pod rejected: Pod's Overhead doesn't match RuntimeClass's defined Overhead"},
		{corev1.PodSpec{Overhead: resources("memory", "1Mi")}, "pod rejected: Pod Overhead set without corresponding " +
			"RuntimeClass defined Overhead"},
		{corev1.PodSpec{RuntimeClassName: &vm, NodeSelector: map[string]string{"kvm": "no"}},
			"conflict: runtimeClass.scheduling.nodeSelector[kvm] = yes; pod.spec.nodeSelector[kvm] = no"},
	} {
		if _, err := admitPod(t, p, &corev1.Pod{Spec: row.spec}); err == nil ||
			!strings.HasSuffix(err.Error(), row.want) {
			t.Errorf("got  %v\nwant %s", err, row.want)
		}
	}
}

func TestForbiddenNodeLabels(t *testing.T) {
	t.Parallel()
	old := map[string]string{"kubernetes.io/hostname": "x", "node-restriction.kubernetes.io/a": "1",
		"example.com/a": "1"}
	now := map[string]string{
		"kubernetes.io/hostname": "y", "example.com/a": "2", "plain": "1", "topology.kubernetes.io/zone": "z",
		"node.kubernetes.io/instance-type": "big",
		"sub.kubelet.kubernetes.io/x":      "1", "node-role.kubernetes.io/master": "",
		"a.node-restriction.kubernetes.io/b": "1",
		"other.k8s.io/c":                     "1",
		"notkubernetes.io/d":                 "1",
	}
	want := []string{"a.node-restriction.kubernetes.io/b", "node-restriction.kubernetes.io/a",
		"node-role.kubernetes.io/master", "other.k8s.io/c"}
	if got := forbiddenLabels(old, now); !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestNewCreatesAllPlugins(t *testing.T) {
	t.Parallel()
	c := newTestConfig(t)
	if _, err := New(c); err != nil {
		t.Fatal(err)
	}
	c.Disabled = []string{"PodSecurity", "Nonsense"}
	const want = `disable-admission-plugins plugin "Nonsense" is unknown`
	if _, err := New(c); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("unknown plugin: %v", err)
	}
}

// TestTopologyLabelsAreCopiedToPod covers creation with a node name and binding.
func TestTopologyLabelsAreCopiedToPod(t *testing.T) {
	t.Parallel()
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", Labels: map[string]string{
		corev1.LabelTopologyZone: "z", corev1.LabelTopologyRegion: "r", corev1.LabelHostname: "n"}}}
	p := newTestPlugin(t, newTopologyLabels, newTestConfig(t, node))
	want := map[string]string{"a": "b", corev1.LabelTopologyZone: "z", corev1.LabelTopologyRegion: "r"}
	for name, want := range map[string]map[string]string{"n": want, "": {"a": "b"}, "unknown": {"a": "b"}} {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"a": "b"}},
			Spec: corev1.PodSpec{NodeName: name}}
		if got, err := admitPod(t, p, pod); err != nil || !equality.Semantic.DeepEqual(got.Labels, want) {
			t.Errorf("created on node %q: %v, %v", name, got.Labels, err)
		}
	}
	for _, at := range []struct{ resource, sub string }{{"pods", "binding"}, {"bindings", ""}} {
		b := &corev1.Binding{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "ns",
			Labels: map[string]string{"a": "b"}},
			Target: corev1.ObjectReference{Kind: "Node", Name: "n"}}
		a := admission.NewAttributesRecord(b, nil, corev1.SchemeGroupVersion.WithKind("Binding"), "ns", "p",
			corev1.SchemeGroupVersion.WithResource(at.resource), at.sub,
			admission.Create, &metav1.CreateOptions{}, false, &user.DefaultInfo{Name: "ann"})
		if err := p.(admission.MutationInterface).Admit(t.Context(), a, nil); err != nil ||
			!equality.Semantic.DeepEqual(b.Labels, want) {
			t.Errorf("bound with %v: %v, %v", at, b.Labels, err)
		}
	}
}

// TestNewNodeIsTainted covers a node that registers itself.
func TestNewNodeIsTainted(t *testing.T) {
	t.Parallel()
	customTaint := corev1.Taint{Key: "mine", Effect: corev1.TaintEffectNoSchedule}
	unready := corev1.Taint{Key: corev1.TaintNodeNotReady, Effect: corev1.TaintEffectNoSchedule}
	for _, taints := range [][]corev1.Taint{{customTaint}, {customTaint, unready}} {
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}, Spec: corev1.NodeSpec{Taints: taints}}
		a := admission.NewAttributesRecord(node, nil, corev1.SchemeGroupVersion.WithKind("Node"), "", "n",
			corev1.SchemeGroupVersion.WithResource("nodes"), "",
			admission.Create, &metav1.CreateOptions{}, false, &user.DefaultInfo{Name: "system:node:n",
				Groups: []string{"system:nodes"}})
		c := newTestConfig(t)
		for _, p := range []admission.Interface{newTestPlugin(t, newTaintNodesByCondition, c), newTestPlugin(t,
			newNodeRestriction, c)} {
			if m, ok := p.(admission.MutationInterface); ok {
				if err := m.Admit(t.Context(), a, nil); err != nil {
					t.Error(err)
				}
			}
			if v, ok := p.(admission.ValidationInterface); ok {
				if err := v.Validate(t.Context(), a, nil); err != nil {
					t.Error(err)
				}
			}
		}
		if !equality.Semantic.DeepEqual(node.Spec.Taints, []corev1.Taint{customTaint, unready}) {
			t.Errorf("node with taints %v: got %v", taints, node.Spec.Taints)
		}
	}
}

// TestNodeRestrictionRejectsPodCIDRChange: all other nodes route the pod CIDR to the node.
func TestNodeRestrictionRejectsPodCIDRChange(t *testing.T) {
	t.Parallel()
	with := func(ranges ...string) *corev1.Node {
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}, Spec: corev1.NodeSpec{PodCIDRs: ranges}}
		if len(ranges) > 0 {
			n.Spec.PodCIDR = ranges[0]
		}
		return n
	}
	const one, other = "10.42.1.0/24", "10.42.2.0/24"
	p := newTestPlugin(t, newNodeRestriction, newTestConfig(t)).(admission.ValidationInterface)
	for _, row := range []struct {
		name     string
		old, now *corev1.Node
		allowed  bool
	}{
		{"registration", nil, with(), true},
		{"registration with a pod CIDR", nil, with(one), false},
		{"another change", with(one), with(one), true},
		{"setting a pod CIDR", with(), with(one), false},
		{"changing the pod CIDR", with(one), with(other), false},
		{"adding a pod CIDR", with(one), with(one, "fd00::/64"), false},
		{"removing the pod CIDR", with(one), with(), false},
	} {
		verb, o, old := admission.Update, runtime.Object(&metav1.UpdateOptions{}), runtime.Object(row.old)
		if row.old == nil {
			verb, o, old = admission.Create, &metav1.CreateOptions{}, nil
		}
		a := admission.NewAttributesRecord(row.now, old, corev1.SchemeGroupVersion.WithKind("Node"), "", "n",
			corev1.SchemeGroupVersion.WithResource("nodes"), "",
			verb, o, false, &user.DefaultInfo{Name: "system:node:n", Groups: []string{"system:nodes"}})
		if err := p.Validate(t.Context(), a, nil); (err == nil) != row.allowed {
			t.Errorf("%s: got %v", row.name, err)
		}
	}
}

// TestQuotaEvaluatorsMatchResourceNames checks that every resource name of a quota is handled by
// exactly one evaluator.
func TestQuotaEvaluatorsMatchResourceNames(t *testing.T) {
	t.Parallel()
	all := []corev1.ResourceName{
		"pods", "count/pods", "cpu", "requests.memory", "limits.cpu", "requests.nvidia.com/gpu", "hugepages-2Mi",
		"services",
		"services.nodeports",
		"persistentvolumeclaims", "requests.storage", "gold.storageclass.storage.k8s.io/requests.storage",
		"count/deployments.apps", "configmaps",
	}
	matches := map[corev1.ResourceName]int{}
	for _, e := range evaluators([]schema.GroupResource{{Resource: "pods"}, {Resource: "configmaps"}, {Group: "apps",
		Resource: "deployments"}}) {
		for _, name := range e.MatchingResources(all) {
			matches[name]++
		}
	}
	for _, name := range all {
		if matches[name] != 1 {
			t.Errorf("%s matches %d evaluators", name, matches[name])
		}
	}
	err := podEvaluator{}.Constraints([]corev1.ResourceName{"limits.cpu", "memory", "pods"},
		podWith(resources("memory", "1Gi"), nil))
	if err == nil || err.Error() != "must specify limits.cpu for: c" {
		t.Errorf("pod without limit: %v", err)
	}
	early := podWith(resources("memory", "1Gi"), nil)
	early.Spec.InitContainers = []corev1.Container{{Name: "first"}}
	err = podEvaluator{}.Constraints([]corev1.ResourceName{"memory"}, early)
	if err == nil || err.Error() != "must specify memory for: first" {
		t.Errorf("init container without request: %v", err)
	}
	if err := (podEvaluator{}).Constraints([]corev1.ResourceName{"ephemeral-storage", "limits.ephemeral-storage"},
		early); err != nil {
		t.Errorf("pod without ephemeral storage: %v", err)
	}
}

// TestEscalationChecksAggregatedRoles covers cluster roles whose rules do not change. A label can
// make a role part of an aggregated one, and removing the aggregation rule makes the rules
// permanent.
func TestEscalationChecksAggregatedRoles(t *testing.T) {
	t.Parallel()
	p := newTestPlugin(t, newEscalation, newTestConfig(t)).(admission.ValidationInterface)
	all := []rbacv1.PolicyRule{{Verbs: []string{"*"}, APIGroups: []string{"*"}, Resources: []string{"*"}}}
	role := func(rules []rbacv1.PolicyRule, change ...func(*rbacv1.ClusterRole)) *rbacv1.ClusterRole {
		r := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "r", ResourceVersion: "1"}, Rules: rules}
		for _, f := range change {
			f(r)
		}
		return r
	}
	withLabel := func(r *rbacv1.ClusterRole) {
		r.Labels = map[string]string{"rbac.authorization.k8s.io/aggregate-to-edit": "true"}
	}
	withAggregationRule := func(r *rbacv1.ClusterRole) {
		r.AggregationRule = &rbacv1.AggregationRule{ClusterRoleSelectors: []metav1.LabelSelector{{}}}
	}
	withMetadata := func(r *rbacv1.ClusterRole) {
		r.Finalizers, r.OwnerReferences = []string{"a/b"}, []metav1.OwnerReference{{Name: "o"}}
		r.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "m"}}
	}
	for _, row := range []struct {
		name     string
		old, now *rbacv1.ClusterRole
		want     bool
	}{
		{"finalizers and owner references", role(all), role(all, withMetadata), true},
		{"a label on a role without rules", role(nil), role(nil, withLabel), true},
		{"a label on a role with all rules", role(all), role(all, withLabel), false},
		{"fewer rules, none of them held", role(append(all, all...)), role(all), false},
		{"an aggregation rule added", role(nil), role(nil, withAggregationRule), false},
		{"an aggregation rule removed", role(nil, withAggregationRule), role(nil), false},
		{"metadata of an aggregated role", role(nil, withAggregationRule),
			role(nil, withAggregationRule, withMetadata), true},
	} {
		a := admission.NewAttributesRecord(row.now, row.old, rbacv1.SchemeGroupVersion.WithKind("ClusterRole"), "", "r",
			rbacv1.SchemeGroupVersion.WithResource("clusterroles"), "",
			admission.Update, &metav1.UpdateOptions{}, false, &user.DefaultInfo{Name: "ann"})
		if err := p.Validate(t.Context(), a, nil); (err == nil) != row.want {
			t.Errorf("%s: got %v", row.name, err)
		}
	}
}

// TestEscalationReadsLiveRoles binds roles that are missing from the cache or outdated there.
func TestEscalationReadsLiveRoles(t *testing.T) {
	t.Parallel()
	held := []rbacv1.PolicyRule{{Verbs: []string{"get"}, APIGroups: []string{""}, Resources: []string{"pods"}}}
	more := []rbacv1.PolicyRule{{Verbs: []string{"get"}, APIGroups: []string{""}, Resources: []string{"secrets"}}}
	named := func(name string, rules []rbacv1.PolicyRule) *rbacv1.ClusterRole {
		return &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: name}, Rules: rules}
	}
	anns := &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "anns"}, RoleRef: rbacv1.RoleRef{
		Kind: "ClusterRole", Name: "held"}, Subjects: []rbacv1.Subject{{Kind: "User", Name: "ann"}}}
	// The cache and the API server hold different objects.
	c := newTestConfig(t, named("held", held), anns, named("reduced", more), named("extended", held))
	c.Client = fake.NewClientset(named("reduced", held), named("extended", more), named("new", held),
		&rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "local"}, Rules: held})
	p := newTestPlugin(t, newEscalation, c).(admission.ValidationInterface)
	for _, row := range []struct{ kind, name, want string }{
		{"ClusterRole", "new", ""},
		{"Role", "local", ""},
		{"ClusterRole", "reduced", ""},
		{"ClusterRole", "extended", "not currently held"},
		{"ClusterRole", "none", `clusterroles.rbac.authorization.k8s.io "none" not found`},
		{"Role", "new", `roles.rbac.authorization.k8s.io "new" not found`},
	} {
		b := &rbacv1.RoleBinding{RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: row.kind, Name: row.name}}
		a := admission.NewAttributesRecord(b, nil, rbacv1.SchemeGroupVersion.WithKind("RoleBinding"), "ns", "b",
			rbacv1.SchemeGroupVersion.WithResource("rolebindings"), "",
			admission.Create, &metav1.CreateOptions{}, false, &user.DefaultInfo{Name: "ann"})
		err := p.Validate(t.Context(), a, nil)
		if (err == nil) != (row.want == "") || err != nil && !strings.Contains(err.Error(), row.want) {
			t.Errorf("binding to %s %s: %v, want %q", row.kind, row.name, err, row.want)
		}
	}
}

// TestQuotaChecksPodEnteringScope: a pod that gets a deadline is checked against the quotas of the
// new scope, and does not count again in quotas that already covered it.
func TestQuotaChecksPodEnteringScope(t *testing.T) {
	t.Parallel()
	full := func(name string, scopes ...corev1.ResourceQuotaScope) corev1.ResourceQuota {
		return corev1.ResourceQuota{
			ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name}, Spec: corev1.ResourceQuotaSpec{Scopes: scopes},
			Status: corev1.ResourceQuotaStatus{Hard: resources("pods", "2"), Used: resources("pods", "2")},
		}
	}
	terminating, notTerminating, unscoped := full("terminating", corev1.ResourceQuotaScopeTerminating),
		full("not-terminating", corev1.ResourceQuotaScopeNotTerminating), full("unscoped")
	pod := func(deadline int64) *corev1.Pod {
		p := podWith(nil, nil)
		p.Name, p.Namespace, p.ResourceVersion = "p", "ns", "1"
		if deadline > 0 {
			p.Spec.ActiveDeadlineSeconds = &deadline
		}
		return p
	}
	for _, row := range []struct {
		name     string
		old, now *corev1.Pod
		quotas   []corev1.ResourceQuota
		want     string
	}{
		{"a deadline", pod(0), pod(9), []corev1.ResourceQuota{notTerminating, terminating},
			"exceeded quota: terminating"},
		{"a deadline, with quotas that already cover the pod", pod(0), pod(9), []corev1.ResourceQuota{
			notTerminating, unscoped}, ""},
		{"an earlier deadline", pod(9), pod(8), []corev1.ResourceQuota{terminating, unscoped}, ""},
		{"another change", pod(0), pod(0), []corev1.ResourceQuota{notTerminating, unscoped}, ""},
		{"a new pod", nil, pod(9), []corev1.ResourceQuota{terminating}, "exceeded quota: terminating"},
	} {
		operation, old := admission.Update, runtime.Object(row.old)
		if row.old == nil {
			operation, old = admission.Create, nil
		}
		a := admission.NewAttributesRecord(row.now, old, corev1.SchemeGroupVersion.WithKind("Pod"), "ns", "p",
			corev1.SchemeGroupVersion.WithResource("pods"), "",
			operation, nil, false, &user.DefaultInfo{Name: "ann"})
		_, err := resourcequota.CheckRequest(row.quotas, a, podEvaluator{}, nil)
		if (err == nil) != (row.want == "") || err != nil && !strings.Contains(err.Error(), row.want) {
			t.Errorf("%s: got %v, want %q", row.name, err, row.want)
		}
	}
}

// TestLimitRangerAppliesNewLimitRange uses a LimitRange that no cache has yet, in a namespace known
// to have none.
func TestLimitRangerAppliesNewLimitRange(t *testing.T) {
	t.Parallel()
	c := newTestConfig(t)
	p := newTestPlugin(t, newLimitRanger, c)
	limited := func() string {
		t.Helper()
		pod, err := admitPod(t, p, podWith(nil, nil))
		if err != nil {
			t.Fatal(err)
		}
		return pod.Spec.Containers[0].Resources.Limits.Cpu().String()
	}
	if got := limited(); got != "0" {
		t.Errorf("without a LimitRange, got limit %s", got)
	}
	r := &corev1.LimitRange{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "r"},
		Spec: corev1.LimitRangeSpec{Limits: []corev1.LimitRangeItem{{Type: corev1.LimitTypeContainer,
			Default: resources("cpu", "1")}}},
	}
	a := admission.NewAttributesRecord(r, nil, corev1.SchemeGroupVersion.WithKind("LimitRange"), "ns", "r",
		corev1.SchemeGroupVersion.WithResource("limitranges"), "",
		admission.Create, &metav1.CreateOptions{}, false, &user.DefaultInfo{Name: "ann"})
	if err := p.(admission.ValidationInterface).Validate(t.Context(), a, nil); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Client.CoreV1().LimitRanges("ns").Create(t.Context(), r, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if got := limited(); got != "1" {
			t.Errorf("with a new LimitRange, got limit %s", got)
		}
	}
}

// TestLimitRangerIgnoresDeletedObjects updates a claim that exceeds a newer limit.
func TestLimitRangerIgnoresDeletedObjects(t *testing.T) {
	t.Parallel()
	p := newTestPlugin(t, newLimitRanger, newTestConfig(t, &corev1.LimitRange{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "r"},
		Spec: corev1.LimitRangeSpec{Limits: []corev1.LimitRangeItem{{Type: corev1.LimitTypePersistentVolumeClaim,
			Max: resources("storage", "5Gi")}}},
	}))
	claim := func(deleted *metav1.Time) *corev1.PersistentVolumeClaim {
		return &corev1.PersistentVolumeClaim{
			ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "c", DeletionTimestamp: deleted},
			Spec: corev1.PersistentVolumeClaimSpec{Resources: corev1.VolumeResourceRequirements{Requests: resources(
				"storage",
				"10Gi")}},
		}
	}
	now := metav1.Now()
	for deleted, want := range map[*metav1.Time]string{
		nil: `persistentvolumeclaims "c" is forbidden: maximum storage usage per PersistentVolumeClaim is 5Gi, ` +
			`but request is 10Gi`,
		&now: "<nil>",
	} {
		a := admission.NewAttributesRecord(claim(deleted), claim(deleted),
			corev1.SchemeGroupVersion.WithKind("PersistentVolumeClaim"), "ns", "c",
			corev1.SchemeGroupVersion.WithResource("persistentvolumeclaims"), "", admission.Update,
			&metav1.UpdateOptions{},
			false, &user.DefaultInfo{Name: "ann"})
		if got := fmt.Sprint(p.(admission.ValidationInterface).Validate(t.Context(), a, nil)); got != want {
			t.Errorf("being deleted: %t: got %s, want %s", deleted != nil, got, want)
		}
	}
}
