package authz

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
)

func TestRuleAllows(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		rule    rbacv1.PolicyRule
		request string // verb group resource/sub name, or verb path
		want    bool
	}{
		{resourceRule("get", "core", "pods"), "get core pods a", true},
		{resourceRule("get", "core", "pods"), "list core pods", false},
		{resourceRule("get", "core", "pods"), "get apps pods a", false},
		{resourceRule("get", "core", "pods"), "get core pods/log a", false},
		{resourceRule("get", "core", "pods/log"), "get core pods/log a", true},
		{resourceRule("get", "core", "*/log"), "get core pods/log a", true},
		{resourceRule("get", "core", "*/log"), "get core pods a", false},
		{resourceRule("get", "core", "*"), "get core pods/log a", true},
		{resourceRule("*", "*", "*"), "escalate rbac.authorization roles a", true},
		{resourceRule("get", "core", "pods", "a"), "get core pods a", true},
		{resourceRule("get", "core", "pods", "a"), "get core pods b", false},
		{resourceRule("get", "core", "pods", "a"), "get core pods", false},
		{resourceRule("read", "core", "pods"), "watch core pods", true},
		{resourceRule("write", "core", "pods"), "get core pods a", false},
		{nonResourceRule("/metrics"), "get /metrics", true},
		{nonResourceRule("/metrics"), "get /metrics/slis", false},
		{nonResourceRule("/metrics/*"), "get /metrics/slis", true},
		{nonResourceRule("/metrics/*"), "post /metrics/slis", false},
		{nonResourceRule("*"), "get /anything", true},
		{resourceRule("*", "*", "*"), "get /anything", false},
		{nonResourceRule("*"), "get core pods a", false},
	} {
		if got := ruleAllows(&row.rule, parseAttributes(row.request)); got != row.want {
			t.Errorf("%s with rule %s: %v", row.request, compactRule(&row.rule), got)
		}
	}
}

func parseAttributes(s string) authorizer.AttributesRecord {
	f := strings.Fields(s)
	if len(f) == 2 {
		return authorizer.AttributesRecord{Verb: f[0], Path: f[1]}
	}
	a := authorizer.AttributesRecord{Verb: f[0], APIGroup: groupsOf(f[1])[0], ResourceRequest: true}
	a.Resource, a.Subresource, _ = strings.Cut(f[2], "/")
	if len(f) > 3 {
		a.Name = f[3]
	}
	return a
}

// newTestRBAC returns an authorizer whose caches hold the objects.
func newTestRBAC(t *testing.T, objects ...runtime.Object) *RBAC {
	t.Helper()
	f := informers.NewSharedInformerFactory(nil, 0)
	for _, o := range objects {
		var err error
		switch o := o.(type) {
		case *rbacv1.ClusterRole:
			err = f.Rbac().V1().ClusterRoles().Informer().GetIndexer().Add(o)
		case *rbacv1.Role:
			err = f.Rbac().V1().Roles().Informer().GetIndexer().Add(o)
		case *rbacv1.ClusterRoleBinding:
			err = f.Rbac().V1().ClusterRoleBindings().Informer().GetIndexer().Add(o)
		case *rbacv1.RoleBinding:
			err = f.Rbac().V1().RoleBindings().Informer().GetIndexer().Add(o)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return NewRBAC(f)
}

func TestRBACBindings(t *testing.T) {
	t.Parallel()
	ref := func(kind, name string) rbacv1.RoleRef { return rbacv1.RoleRef{Kind: kind, Name: name} }
	r := newTestRBAC(t,
		&rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "pods"}, Rules: []rbacv1.PolicyRule{resourceRule("get",
			"core", "pods")}},
		&rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "maps"}, Rules: []rbacv1.PolicyRule{
			resourceRule("get", "core", "configmaps")}},
		&rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "all"}, RoleRef: ref("ClusterRole", "pods"),
			Subjects: []rbacv1.Subject{group("readers")}},
		&rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "dangling"},
			RoleRef:  ref("ClusterRole", "missing"),
			Subjects: []rbacv1.Subject{userNamed("ann")}},
		&rbacv1.RoleBinding{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "one"}, RoleRef: ref("Role", "maps"),
			Subjects: []rbacv1.Subject{userNamed("ann"), {Kind: "ServiceAccount", Name: "app"}}},
		&rbacv1.RoleBinding{ObjectMeta: metav1.ObjectMeta{Namespace: "b", Name: "two"},
			RoleRef:  ref("ClusterRole", "pods"),
			Subjects: []rbacv1.Subject{userNamed("ann")}},
	)
	ann, reader, app := &user.DefaultInfo{Name: "ann"}, &user.DefaultInfo{Name: "x", Groups: []string{"readers"}},
		&user.DefaultInfo{Name: "system:serviceaccount:a:app"}
	for _, row := range []struct {
		requester user.Info
		namespace string
		request   string
		want      authorizer.Decision
	}{
		{reader, "a", "get core pods p", authorizer.DecisionAllow},
		{reader, "", "get core pods p", authorizer.DecisionAllow},
		{ann, "a", "get core pods p", authorizer.DecisionNoOpinion},
		{ann, "b", "get core pods p", authorizer.DecisionAllow},
		{ann, "", "get core pods p", authorizer.DecisionNoOpinion},
		{ann, "a", "get core configmaps p", authorizer.DecisionAllow},
		{app, "a", "get core configmaps p", authorizer.DecisionAllow},
		{app, "b", "get core configmaps p", authorizer.DecisionNoOpinion},
		{&user.DefaultInfo{Name: "system:serviceaccount:b:app"}, "a", "get core configmaps p",
			authorizer.DecisionNoOpinion},
	} {
		a := parseAttributes(row.request)
		a.User, a.Namespace = row.requester, row.namespace
		if got, reason, err := r.Authorize(t.Context(), a); got != row.want || err != nil {
			t.Errorf("%s, %s in %q: %v (%s, %v)", row.requester.GetName(), row.request, row.namespace, got, reason, err)
		}
	}
	if err := r.ConfirmNoEscalation(ann, "a", []rbacv1.PolicyRule{resourceRule("get", "core", "configmaps",
		"one")}); err != nil {
		t.Errorf("rules held: %v", err)
	}
	if err := r.ConfirmNoEscalation(ann, "a", []rbacv1.PolicyRule{resourceRule("get", "core", "pods")}); err == nil ||
		!strings.Contains(err.Error(), `{APIGroups:[""], Resources:["pods"], Verbs:["get"]}`) {
		t.Errorf("rules not held: %v", err)
	}
}

// TestDefaultPolicyIsConsistent checks for unique names, bindings to existing roles, and complete
// rules.
func TestDefaultPolicyIsConsistent(t *testing.T) {
	t.Parallel()
	d := DefaultPolicy()
	roles := map[string]bool{}
	for _, r := range d.ClusterRoles {
		if roles[r.Name] {
			t.Errorf("duplicate cluster role %s", r.Name)
		}
		roles[r.Name] = true
		if len(r.Rules) == 0 && r.AggregationRule == nil {
			t.Errorf("cluster role %s has no rules", r.Name)
		}
		for _, rule := range r.Rules {
			if len(rule.Verbs) == 0 || len(rule.NonResourceURLs) == 0 &&
				(len(rule.APIGroups) == 0 || len(rule.Resources) == 0) {
				t.Errorf("cluster role %s has the incomplete rule %s", r.Name, compactRule(&rule))
			}
		}
	}
	for want := range strings.FieldsSeq(`
		cluster-admin admin edit view system:basic-user system:discovery system:public-info-viewer
		system:node system:node-bootstrapper system:node-proxier system:auth-delegator system:kube-scheduler
		system:kube-controller-manager system:kubelet-api-admin system:monitoring
		system:certificates.k8s.io:certificatesigningrequests:nodeclient
		system:certificates.k8s.io:kubelet-serving-approver system:controller:replicaset-controller`) {
		if !roles[want] {
			t.Errorf("missing cluster role %s", want)
		}
	}
	for _, b := range d.ClusterRoleBindings {
		if !roles[b.RoleRef.Name] {
			t.Errorf("cluster role binding %s refers to missing role %s", b.Name, b.RoleRef.Name)
		}
	}
	if len(d.RoleBindings) == 0 {
		t.Error("no role bindings")
	}
}

func TestAggregatedRules(t *testing.T) {
	t.Parallel()
	d := DefaultPolicy()
	all := map[string]*rbacv1.ClusterRole{}
	var sorted []*rbacv1.ClusterRole
	for i := range d.ClusterRoles {
		all[d.ClusterRoles[i].Name] = &d.ClusterRoles[i]
		sorted = append(sorted, &d.ClusterRoles[i])
	}
	for range 3 { // admin contains edit, which contains view
		for _, name := range []string{"admin", "edit", "view"} {
			rules, err := aggregatedRules(all[name], sorted)
			if err != nil {
				t.Fatal(err)
			}
			all[name].Rules = rules
		}
	}
	allows := func(role, request string) bool {
		return slices.ContainsFunc(all[role].Rules, func(r rbacv1.PolicyRule) bool {
			return ruleAllows(&r,
				parseAttributes(request))
		})
	}
	for _, row := range []struct {
		role, request string
		want          bool
	}{
		{"view", "list core pods", true},
		{"view", "get core secrets s", false},
		{"view", "create core pods", false},
		{"edit", "list core pods", true},
		{"edit", "get core secrets s", true},
		{"edit", "create core pods/exec p", true},
		{"edit", "create rbac.authorization rolebindings", false},
		{"admin", "create rbac.authorization rolebindings", true},
		{"admin", "get core secrets s", true},
		{"admin", "update core resourcequotas q", false},
		{"admin", "list core nodes", false},
		{"view", "get metrics pods p", true},
		{"view", "list core events", true},
		{"view", "list events events", true},
		{"view", "create events events", false},
		{"edit", "create events events", true},
		{"view", "list resource resourceclaims", true},
		{"view", "create resource resourceclaims", false},
		{"edit", "create resource resourceclaimtemplates", true},
		{"admin", "update resource resourceclaims/status c", false},
		{"admin", "create resource resourceslices", false},
	} {
		if got := allows(row.role, row.request); got != row.want {
			t.Errorf("%s may %s: %v", row.role, row.request, got)
		}
	}
}

func TestReconcilePreservesUserAdditions(t *testing.T) {
	t.Parallel()
	client := fake.NewClientset(&rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "system:basic-user",
		Labels: map[string]string{
			"mine": "yes"}}, Rules: []rbacv1.PolicyRule{resourceRule("get", "core", "nodes")}},
		&rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "system:discovery", Annotations: map[string]string{
			rbacv1.AutoUpdateAnnotationKey: "false"}}},
		&rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "cluster-admin"}, RoleRef: rbacv1.RoleRef{
			APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "cluster-admin"}, Subjects: []rbacv1.Subject{
			userNamed("ann")}},
	)
	for range 2 {
		if err := DefaultPolicy().Reconcile(t.Context(), client); err != nil {
			t.Fatal(err)
		}
	}
	get := func(name string) *rbacv1.ClusterRole {
		r, err := client.RbacV1().ClusterRoles().Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	if r := get("system:basic-user"); len(r.Rules) != 4 || r.Labels["mine"] != "yes" {
		t.Errorf("added or default rules are missing: %+v", r)
	}
	if r := get("system:discovery"); len(r.Rules) != 0 {
		t.Errorf("role without autoupdate was changed: %+v", r)
	}
	b, err := client.RbacV1().ClusterRoleBindings().Get(t.Context(), "cluster-admin", metav1.GetOptions{})
	if err != nil || len(b.Subjects) != 2 {
		t.Errorf("added or default subject is missing: %+v, %v", b, err)
	}
}

// TestGraphFindsAllPodReferences uses a pod with every kind of reference.
func TestGraphFindsAllPodReferences(t *testing.T) {
	t.Parallel()
	secret := func(n string) *corev1.LocalObjectReference { return &corev1.LocalObjectReference{Name: n} }
	env := func(n string) ([]corev1.EnvVar, []corev1.EnvFromSource) {
		return []corev1.EnvVar{
				{ValueFrom: &corev1.EnvVarSource{SecretKeyRef: &corev1.SecretKeySelector{
					LocalObjectReference: *secret(n + "-key")}}},
				{ValueFrom: &corev1.EnvVarSource{ConfigMapKeyRef: &corev1.ConfigMapKeySelector{
					LocalObjectReference: *secret(n + "-key")}}},
			}, []corev1.EnvFromSource{
				{SecretRef: &corev1.SecretEnvSource{LocalObjectReference: *secret(n + "-from")}},
				{ConfigMapRef: &corev1.ConfigMapEnvSource{LocalObjectReference: *secret(n + "-from")}},
			}
	}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p"}, Spec: corev1.PodSpec{
		NodeName: "x", ServiceAccountName: "app", ImagePullSecrets: []corev1.LocalObjectReference{*secret("pull")},
		InitContainers: make([]corev1.Container, 1), Containers: make([]corev1.Container, 1),
		EphemeralContainers: make([]corev1.EphemeralContainer, 1),
	}}
	pod.Spec.InitContainers[0].Env, pod.Spec.InitContainers[0].EnvFrom = env("init")
	pod.Spec.Containers[0].Env, pod.Spec.Containers[0].EnvFrom = env("main")
	pod.Spec.EphemeralContainers[0].Env, pod.Spec.EphemeralContainers[0].EnvFrom = env("debug")
	for i, v := range []corev1.VolumeSource{
		{Secret: &corev1.SecretVolumeSource{SecretName: "vol"}},
		{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: *secret("vol")}},
		{Projected: &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{
			{Secret: &corev1.SecretProjection{LocalObjectReference: *secret("proj")}},
			{ConfigMap: &corev1.ConfigMapProjection{
				LocalObjectReference: *secret("proj")}},
		}}},
		{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "claim"}},
		{Ephemeral: &corev1.EphemeralVolumeSource{}},
		{CSI: &corev1.CSIVolumeSource{NodePublishSecretRef: secret("csi")}},
		{ISCSI: &corev1.ISCSIVolumeSource{SecretRef: secret("iscsi")}},
		{FlexVolume: &corev1.FlexVolumeSource{SecretRef: secret("flex")}},
		{AzureFile: &corev1.AzureFileVolumeSource{SecretName: "azure"}},
		{CephFS: &corev1.CephFSVolumeSource{SecretRef: secret("ceph")}},
		{RBD: &corev1.RBDVolumeSource{SecretRef: secret("rbd")}},
		{Cinder: &corev1.CinderVolumeSource{SecretRef: secret("cinder")}},
		{ScaleIO: &corev1.ScaleIOVolumeSource{SecretRef: secret("scaleio")}},
		{StorageOS: &corev1.StorageOSVolumeSource{SecretRef: secret("storageos")}},
	} {
		pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: fmt.Sprintf("v%d", i), VolumeSource: v})
	}
	pod.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "a", ResourceClaimName: new("gpu")},
		{Name: "b", ResourceClaimTemplateName: new("template")}}
	pod.Status.ResourceClaimStatuses = []corev1.PodResourceClaimStatus{{Name: "b", ResourceClaimName: new("made")},
		{Name: "c"}}
	pod.Status.ExtendedResourceClaimStatus = &corev1.PodExtendedResourceClaimStatus{ResourceClaimName: "extended"}
	f := informers.NewSharedInformerFactory(nil, 0)
	g, err := NewGraph(f, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Core().V1().Pods().Informer().GetIndexer().Add(pod); err != nil {
		t.Fatal(err)
	}
	if err := f.Core().V1().PersistentVolumes().Informer().GetIndexer().Add(&corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: "pv"}, Spec: corev1.PersistentVolumeSpec{
			ClaimRef: &corev1.ObjectReference{Namespace: "ns", Name: "claim"},
			PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{
				NodeStageSecretRef: &corev1.SecretReference{Namespace: "drivers", Name: "stage"}}},
		}}); err != nil {
		t.Fatal(err)
	}
	refs := map[string]string{
		"secrets": "pull init-key init-from main-key main-from debug-key debug-from vol proj csi iscsi " +
			"flex azure ceph rbd cinder scaleio storageos",
		"configmaps":             "init-key init-from main-key main-from debug-key debug-from vol proj",
		"persistentvolumeclaims": "claim p-v4", "serviceaccounts": "app", "pods": "p",
		"resourceclaims": "gpu made extended",
	}
	for resource, list := range refs {
		for name := range strings.FieldsSeq(list) {
			if !g.References(t.Context(), "x", Ref{resource, "ns", name}) {
				t.Errorf("%s %s not found", resource, name)
			}
			if g.References(t.Context(), "y", Ref{resource, "ns", name}) ||
				g.References(t.Context(), "x", Ref{resource, "other",
					name}) {
				t.Errorf("%s %s found for another node or namespace", resource, name)
			}
		}
	}
	if !g.References(t.Context(), "x", Ref{"persistentvolumes", "", "pv"}) || !g.References(t.Context(), "x",
		Ref{"secrets", "drivers", "stage"}) || g.References(t.Context(), "y", Ref{"secrets", "drivers", "stage"}) {
		t.Error("the volume of a claim or its secret is not found, or found for another node")
	}
	pod = pod.DeepCopy()
	pod.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: "1"}
	if err := f.Core().V1().Pods().Informer().GetIndexer().Update(pod); err != nil {
		t.Fatal(err)
	}
	if g.References(t.Context(), "x", Ref{"secrets", "ns", "vol"}) {
		t.Error("a reference of a mirror pod was found")
	}
}
