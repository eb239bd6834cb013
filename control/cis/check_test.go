package cis

import (
	"errors"
	"io/fs"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	auditinternal "k8s.io/apiserver/pkg/apis/audit"

	"berth/control"
	"berth/control/audit"
	"berth/internal/cis"
)

// hardened returns facts of a server that follows the benchmark where berth can.
func hardened() *Facts {
	f := &Facts{
		Config: control.Default(),
		Files: Files{
			DataDir: cis.File{Path: "/d", Mode: 0o700}, Config: cis.File{Path: "/c", Mode: 0o600},
			Units: []cis.File{{Path: "/u", Mode: 0o600}}, Store: cis.File{Path: "/d/etcd", Mode: 0o700},
			Admin: cis.File{Path: "/d/admin", Mode: 0o600}, SuperAdmin: cis.File{Path: "/d/super", Err: fs.ErrNotExist},
			AdminGroups: []string{"kubeadm:cluster-admins"},
		},
		Policy:     &auditinternal.Policy{Rules: []auditinternal.PolicyRule{{Level: auditinternal.LevelMetadata}}},
		Encryption: []EncryptedResources{{[]string{"secrets"}, "kms"}},
		Server: &Server{
			URL: "https://127.0.0.1", Profiling: http.StatusNotFound, Anonymous: map[string]int{},
			Node: Review{false, "no relationship found between node 'x' and this object"},
			RBAC: Review{true, "RBAC: allowed by a binding"},
		},
		Cluster: secureCluster(),
	}
	for _, path := range protectedPaths {
		f.Server.Anonymous[path] = http.StatusUnauthorized
	}
	off := false
	f.Config.Authentication.Anonymous = &off
	f.Config.ExtendTokenExpiration = false
	f.Config.EnabledAdmissionPlugins = []string{"DenyServiceExternalIPs", "EventRateLimit", "AlwaysPullImages"}
	f.Config.Audit.Log.MaxBackups, f.Config.Audit.Log.MaxSize = 10, 100
	for name, mode := range map[string]fs.FileMode{"ca.crt": 0o644, "ca.key": 0o600, "server.crt": 0o644,
		"server.key": 0o600, "node-client.crt": 0o644, "node-client.key": 0o600, "nodes-ca.crt": 0o644,
		"service-account.key": 0o600, "encryption.yaml": 0o600} {
		f.Files.PKI = append(f.Files.PKI, cis.File{Path: "/d/pki/" + name, Mode: mode})
	}
	slices.SortFunc(f.Files.PKI, func(a, b cis.File) int { return len(a.Path) - len(b.Path) })
	return f
}

func meta(namespace, name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: namespace, Name: name}
}

// secureCluster returns objects that follow the benchmark.
func secureCluster() *Cluster {
	off, on := false, true
	c := &Cluster{
		Namespaces: []corev1.Namespace{{ObjectMeta: meta("", "team")}, {ObjectMeta: meta("", "kube-system")}},
		Nodes:      []corev1.Node{{ObjectMeta: meta("", "one")}},
		ServiceAccounts: []corev1.ServiceAccount{
			{ObjectMeta: meta("team", "default"), AutomountServiceAccountToken: &off}},
		NetworkPolicies: []networkingv1.NetworkPolicy{{ObjectMeta: meta("team", "one")}},
		WithRootCA:      []string{"team"},
	}
	c.Namespaces[0].Labels = map[string]string{enforceLabel: restricted}
	c.Nodes[0].Status.NodeInfo.KubeletVersion = "v1.37.2+berth"
	pod := corev1.Pod{ObjectMeta: meta("team", "web")}
	pod.Spec.SecurityContext = &corev1.PodSecurityContext{RunAsNonRoot: &on,
		SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault}}
	pod.Spec.Containers = []corev1.Container{{Name: "a", SecurityContext: &corev1.SecurityContext{
		AllowPrivilegeEscalation: &off, Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}}}}}
	c.Pods = []corev1.Pod{pod}
	c.grant("cluster-admin", "system:masters", rbacv1.PolicyRule{Verbs: []string{"*"}, APIGroups: []string{"*"},
		Resources: []string{"*"}})
	labels := map[string]string{"kubernetes.io/bootstrapping": "rbac-defaults"}
	c.grant("system:controller:job-controller", "system:controllers")
	for i := range c.ClusterRoles {
		c.ClusterRoles[i].Labels, c.ClusterRoleBindings[i].Labels = labels, labels
	}
	return c
}

// grant adds a cluster role and a binding of it to a group. Both have the name of the role.
func (c *Cluster) grant(role, group string, rules ...rbacv1.PolicyRule) {
	c.ClusterRoles = append(c.ClusterRoles, rbacv1.ClusterRole{ObjectMeta: meta("", role), Rules: rules})
	c.ClusterRoleBindings = append(c.ClusterRoleBindings, rbacv1.ClusterRoleBinding{ObjectMeta: meta("", role),
		RoleRef:  rbacv1.RoleRef{Kind: "ClusterRole", Name: role},
		Subjects: []rbacv1.Subject{{Kind: rbacv1.GroupKind, Name: group}}})
}

// row has the verdict for hardened facts, and the one after a change.
type row struct {
	good   cis.Verdict
	change func(*Facts) // nil: nothing changes the verdict
	bad    cis.Verdict
}

func granting(group, resource, verb string) func(*Facts) {
	return func(f *Facts) {
		f.Cluster.grant("extra", "system:authenticated", rbacv1.PolicyRule{Verbs: []string{verb},
			APIGroups: []string{group}, Resources: []string{resource}})
	}
}

// openNamespace removes the level of a namespace.
func openNamespace(f *Facts) { f.Cluster.Namespaces[0].Labels = nil }

func withPod(change func(*corev1.PodSpec)) func(*Facts) {
	return func(f *Facts) { change(&f.Cluster.Pods[0].Spec) }
}

func withFile(name string, change func(*cis.File)) func(*Facts) {
	return func(f *Facts) {
		for i := range f.Files.PKI {
			if f.Files.PKI[i].Path == "/d/pki/"+name {
				change(&f.Files.PKI[i])
			}
		}
	}
}

func without(name string) func(*Facts) {
	return withFile(name, func(file *cis.File) { file.Path = "/d/pki/other" })
}

func disabled(plugin string) func(*Facts) {
	return func(f *Facts) { f.Config.DisabledAdmissionPlugins = []string{plugin} }
}

func noController(name string) func(*Facts) {
	return func(f *Facts) { f.Config.Controllers = []string{"*", "-" + name} }
}

func externalStore(f *Facts) { f.Config.Etcd.Endpoints = []string{"http://etcd:2379"} }

func noAudit(f *Facts) { f.Config.Audit.Log.Path = "" }

func expired(name string) func(*Facts) { return func(f *Facts) { f.Files.Expired = []string{name} } }

// serverRows are the controls of chapters 1 to 3.
func serverRows() map[string]row {
	open := func(f *cis.File) { f.Mode |= 0o077 }
	foreign := func(f *cis.File) { f.UID = 7 }
	profiling := row{cis.Pass, func(f *Facts) { f.Server.Profiling = http.StatusOK }, cis.Fail}
	absent, store := row{cis.NotApplicable, nil, ""}, row{cis.NotApplicable, externalStore, cis.Manual}
	rows := map[string]row{
		"1.1.1": {cis.Pass, func(f *Facts) { open(&f.Files.Config) }, cis.Fail},
		"1.1.2": {cis.Pass, func(f *Facts) { foreign(&f.Files.Config) }, cis.Fail},
		"1.1.3": absent, "1.1.4": absent, "1.1.5": absent, "1.1.6": absent, "1.1.7": store, "1.1.8": store,
		"1.1.9": absent, "1.1.10": absent, "1.1.15": absent, "1.1.16": absent, "1.1.17": absent, "1.1.18": absent,
		"1.1.11": {cis.Pass, func(f *Facts) { open(&f.Files.Store) }, cis.Fail},
		"1.1.12": {cis.Accepted, func(f *Facts) { foreign(&f.Files.Store) }, cis.Fail},
		"1.1.13": {cis.Pass, func(f *Facts) { open(&f.Files.Admin) }, cis.Fail},
		"1.1.14": {cis.Pass, func(f *Facts) { foreign(&f.Files.Admin) }, cis.Fail},
		"1.1.19": {cis.Pass, withFile("ca.crt", foreign), cis.Fail},
		"1.1.20": {cis.Pass, withFile("ca.crt", open), cis.Fail},
		"1.1.21": {cis.Pass, withFile("encryption.yaml", open), cis.Fail},
		"1.2.1":  {cis.Pass, func(f *Facts) { f.Server.Anonymous["/api"] = http.StatusOK }, cis.Fail},
		"1.2.2":  {cis.Pass, nil, ""},
		"1.2.3":  {cis.Pass, func(f *Facts) { f.Config.EnabledAdmissionPlugins = nil }, cis.Manual},
		"1.2.4":  {cis.Pass, without("node-client.key"), cis.Fail},
		"1.2.5":  {cis.Pass, without("nodes-ca.crt"), cis.Fail},
		"1.2.6":  {cis.Pass, func(f *Facts) { f.Server.Anonymous[privatePath] = http.StatusOK }, cis.Fail},
		"1.2.7":  {cis.Pass, func(f *Facts) { f.Server.Node = Review{Allowed: true} }, cis.Fail},
		"1.2.8":  {cis.Pass, func(f *Facts) { f.Server.RBAC = Review{Allowed: true} }, cis.Fail},
		"1.2.9":  {cis.Pass, func(f *Facts) { f.Config.EnabledAdmissionPlugins = nil }, cis.Manual},
		"1.2.10": {cis.Pass, func(f *Facts) { f.Config.EnabledAdmissionPlugins = []string{"AlwaysAdmit"} }, cis.Fail},
		"1.2.11": {cis.Pass, func(f *Facts) { f.Config.EnabledAdmissionPlugins = nil }, cis.Manual},
		"1.2.12": {cis.Pass, disabled("ServiceAccount"), cis.Fail},
		"1.2.13": {cis.Pass, disabled("NamespaceLifecycle"), cis.Fail},
		"1.2.14": {cis.Pass, disabled("NodeRestriction"), cis.Fail},
		"1.2.15": profiling,
		"1.2.16": {cis.Pass, noAudit, cis.Fail},
		"1.2.17": {cis.Pass, func(f *Facts) { f.Config.Audit.Log.MaxAge = 7 }, cis.Fail},
		"1.2.18": {cis.Pass, func(f *Facts) { f.Config.Audit.Log.MaxBackups = 1 }, cis.Fail},
		"1.2.19": {cis.Pass, func(f *Facts) { f.Config.Audit.Log.MaxSize = 1 }, cis.Fail},
		"1.2.20": {cis.Pass, nil, ""},
		"1.2.21": {cis.Pass, nil, ""},
		"1.2.22": {cis.Pass, without("service-account.key"), cis.Fail},
		"1.2.23": {cis.NotApplicable, externalStore, cis.Fail},
		"1.2.24": {cis.Pass, expired("server.crt"), cis.Fail},
		"1.2.25": {cis.Pass, expired("ca.crt"), cis.Fail},
		"1.2.26": {cis.NotApplicable, externalStore, cis.Fail},
		"1.2.27": {cis.Pass, func(f *Facts) { f.Encryption = nil }, cis.Fail},
		"1.2.28": {cis.Pass, func(f *Facts) { f.Encryption[0].Provider = "aesgcm" }, cis.Fail},
		"1.2.29": {cis.Pass, func(f *Facts) { f.Server.WeakCipher = "X" }, cis.Fail},
		"1.2.30": {cis.Pass, func(f *Facts) { f.Config.ExtendTokenExpiration = true }, cis.Accepted},
		"1.3.1":  {cis.Manual, noController("pod-garbage-collector-controller"), cis.Fail},
		"1.3.2":  profiling,
		"1.3.3":  {cis.Pass, func(f *Facts) { f.Cluster.ClusterRoleBindings = nil }, cis.Fail},
		"1.3.4":  {cis.Pass, without("service-account.key"), cis.Fail},
		"1.3.5":  {cis.Pass, func(f *Facts) { f.Cluster.WithRootCA = nil }, cis.Fail},
		"1.3.6":  {cis.Pass, noController("certificatesigningrequest-signing-controller"), cis.Fail},
		"1.3.7":  absent, "1.4.1": profiling, "1.4.2": absent,
		"3.1.1": {cis.Manual, nil, ""},
		"3.1.2": {cis.Pass, func(f *Facts) { f.Cluster.TokenSecrets = []string{"a/b"} }, cis.Manual},
		"3.1.3": {cis.Pass, func(f *Facts) { f.Cluster.BootstrapTokens = []string{"a/b"} }, cis.Manual},
		"3.2.1": {cis.Pass, noAudit, cis.Fail},
		"3.2.2": {cis.Pass, func(f *Facts) { f.Policy.Rules[0].Level = auditinternal.LevelRequest }, cis.Fail},
	}
	for _, id := range []string{"2.1", "2.2", "2.3", "2.4", "2.5", "2.6", "2.7"} {
		rows[id] = row{cis.NotApplicable, func(f *Facts) { open(&f.Files.Store) }, cis.Fail}
	}
	return rows
}

// clusterRows are the controls of chapter 5.
func clusterRows() map[string]row {
	level := row{cis.Pass, openNamespace, cis.Manual}
	on := true
	return map[string]row{
		"5.1.1": {cis.Pass, func(f *Facts) {
			f.Cluster.grant("x", "system:authenticated")
			f.Cluster.ClusterRoleBindings[2].RoleRef.Name = "cluster-admin"
		}, cis.Fail},
		"5.1.2": {cis.Pass, granting("", "secrets", "list"), cis.Fail},
		"5.1.3": {cis.Pass, granting("*", "pods", "get"), cis.Manual},
		"5.1.4": {cis.Pass, granting("", "pods", "create"), cis.Fail},
		"5.1.5": {cis.Pass, func(f *Facts) {
			f.Cluster.ServiceAccounts[0].AutomountServiceAccountToken = nil
		}, cis.Manual},
		"5.1.6":  {cis.Pass, withPod(func(s *corev1.PodSpec) { s.AutomountServiceAccountToken = &on }), cis.Manual},
		"5.1.7":  {cis.Pass, func(f *Facts) { f.Files.AdminGroups = []string{"system:masters"} }, cis.Fail},
		"5.1.8":  {cis.Pass, granting("", "users", "impersonate"), cis.Fail},
		"5.1.9":  {cis.Pass, granting("", "persistentvolumes", "create"), cis.Fail},
		"5.1.10": {cis.Pass, granting("", "*/proxy", "get"), cis.Fail},
		"5.1.11": {cis.Pass, granting("certificates.k8s.io", "certificatesigningrequests/approval", "update"),
			cis.Fail},
		"5.1.12": {cis.Pass, granting("admissionregistration.k8s.io", "*", "patch"), cis.Fail},
		"5.1.13": {cis.Pass, granting("", "serviceaccounts/token", "create"), cis.Fail},
		"5.2.1":  {cis.Pass, disabled("PodSecurity"), cis.Fail},
		"5.2.2":  level, "5.2.3": level, "5.2.4": level, "5.2.5": level, "5.2.6": level, "5.2.7": level, "5.2.8": level,
		"5.2.9": level, "5.2.10": {cis.NotApplicable, nil, ""}, "5.2.11": level, "5.2.12": level,
		"5.3.1": {cis.Pass, func(f *Facts) {
			f.Cluster.Nodes[0].Status.NodeInfo.KubeletVersion = "v1.37.2"
		}, cis.Manual},
		"5.3.2": {cis.Pass, func(f *Facts) { f.Cluster.NetworkPolicies = nil }, cis.Manual},
		"5.4.1": {cis.Pass, withPod(func(s *corev1.PodSpec) {
			s.Containers[0].EnvFrom = []corev1.EnvFromSource{{SecretRef: &corev1.SecretEnvSource{}}}
		}), cis.Manual},
		"5.4.2": {cis.Pass, func(f *Facts) { f.Encryption[0].Provider = "secretbox" }, cis.Manual},
		"5.5.1": {cis.Manual, nil, ""},
		"5.6.1": {cis.Manual, nil, ""},
		"5.6.2": {cis.Pass, withPod(func(s *corev1.PodSpec) { s.SecurityContext.SeccompProfile = nil }), cis.Manual},
		"5.6.3": {cis.Pass, withPod(func(s *corev1.PodSpec) {
			s.SecurityContext, s.Containers[0].SecurityContext = nil, nil
		}), cis.Manual},
		"5.6.4": {cis.Pass, func(f *Facts) { f.Cluster.DefaultNamespace = []string{"pods/a"} }, cis.Manual},
	}
}

func finding(f *Facts, id string) cis.Finding { return checks()[id](f) }

// TestChecks has, for each control, the verdict for a cluster that follows the benchmark and for one that does not.
func TestChecks(t *testing.T) {
	t.Parallel()
	rows := serverRows()
	maps.Copy(rows, clusterRows())
	all := checks()
	if len(rows) != len(Controls()) || len(all) != len(Controls()) {
		t.Errorf("got %d rows and %d checks of %d controls", len(rows), len(all), len(Controls()))
	}
	for _, c := range Controls() {
		r, found := rows[c.ID]
		if !found || all[c.ID] == nil {
			t.Errorf("%s: no row or no check", c.ID)
			continue
		}
		if got := finding(hardened(), c.ID); got.Verdict != r.good || got.Evidence == "" {
			t.Errorf("%s: got %+v, want %s", c.ID, got, r.good)
		}
		if r.change == nil {
			continue
		}
		f := hardened()
		r.change(f)
		got := finding(f, c.ID)
		if got.Verdict != r.bad || got.Evidence == "" || (got.Remedy == "") != (r.bad == cis.Accepted) {
			t.Errorf("%s after the change: got %+v, want %s", c.ID, got, r.bad)
		}
	}
}

// TestDefaultsHaveNoFailure checks default settings, under which no control fails.
func TestDefaultsHaveNoFailure(t *testing.T) {
	t.Parallel()
	f := hardened()
	f.Config, f.Policy, f.Encryption[0].Provider = control.Default(), audit.DefaultPolicy(), "secretbox"
	f.Anonymous.Enabled, f.Files.SuperAdmin.Err = true, nil
	f.Files.Units[0].Mode = 0o644
	want := map[string]cis.Verdict{"1.1.1": cis.Accepted, "1.2.1": cis.Accepted, "1.2.18": cis.Accepted,
		"1.2.19": cis.Accepted, "1.2.30": cis.Accepted, "3.2.2": cis.Manual, "5.1.7": cis.Accepted}
	for _, r := range Check(f).Results {
		if r.Verdict == cis.Fail || r.Verdict == cis.NotChecked || want[r.ID] != "" && r.Verdict != want[r.ID] {
			t.Errorf("%s: got %+v", r.ID, r.Finding)
		}
	}
}

// TestChecksOfSettings has further settings that decide a verdict.
func TestChecksOfSettings(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change func(*Facts)
		want   map[string]cis.Verdict
	}{
		"server not running": {func(f *Facts) {
			f.Server, f.Cluster, f.ServerErr, f.ClusterErr = nil, nil, errors.New("x"), errors.New("x")
		}, map[string]cis.Verdict{"1.2.1": cis.NotChecked, "1.2.29": cis.NotChecked, "3.1.2": cis.NotChecked,
			"5.1.1": cis.NotChecked, "5.2.2": cis.NotChecked, "1.2.24": cis.Pass}},
		"no data directory": {func(f *Facts) { f.FilesErr = fs.ErrNotExist }, map[string]cis.Verdict{
			"1.1.13": cis.NotChecked, "1.2.24": cis.NotChecked, "2.1": cis.NotChecked}},
		"flags only": {func(f *Facts) { f.Files.Config, f.Files.Units = cis.File{}, nil },
			map[string]cis.Verdict{"1.1.1": cis.NotApplicable, "1.1.2": cis.NotApplicable}},
		"writable unit": {func(f *Facts) { f.Files.Units[0].Mode = 0o666 }, map[string]cis.Verdict{"1.1.1": cis.Fail}},
		"unprivileged server": {func(f *Facts) {
			f.Files.DataDir.UID, f.Files.Store.UID, f.Files.Admin.UID = 7, 7, 7
			f.Files.Config.UID, f.Files.Units = 7, nil
		}, map[string]cis.Verdict{"1.1.2": cis.Accepted, "1.1.12": cis.Accepted, "1.1.14": cis.Accepted}},
		"unprivileged server with files of root": {func(f *Facts) { f.Files.DataDir.UID = 7 },
			map[string]cis.Verdict{"1.1.2": cis.Pass, "1.1.14": cis.Pass}},
		"anonymous paths": {func(f *Facts) { f.Anonymous = Anonymous{true, []string{"/livez"}} },
			map[string]cis.Verdict{"1.2.1": cis.Pass}},
		"webhook for audit events": {func(f *Facts) { noAudit(f); f.Config.Audit.Webhook.ConfigFile = "/w" },
			map[string]cis.Verdict{"1.2.16": cis.Manual, "1.2.17": cis.NotApplicable, "3.2.1": cis.Pass}},
		"audit log to the journal": {func(f *Facts) { f.Config.Audit.Log.Path = "-" },
			map[string]cis.Verdict{"1.2.16": cis.Pass, "1.2.18": cis.NotApplicable}},
		"unlimited audit log": {func(f *Facts) { f.Config.Audit.Log.MaxBackups, f.Config.Audit.Log.MaxSize = 0, 0 },
			map[string]cis.Verdict{"1.2.17": cis.Pass, "1.2.18": cis.Pass, "1.2.19": cis.Pass}},
		"external etcd with TLS": {func(f *Facts) {
			e := &f.Config.Etcd
			e.Endpoints, e.CAFile, e.CertFile, e.KeyFile = []string{"https://e"}, "/ca", "/c", "/k"
		}, map[string]cis.Verdict{"1.1.11": cis.Manual, "1.2.23": cis.Pass, "1.2.26": cis.Pass, "2.1": cis.Manual}},
		"invalid files": {func(f *Facts) {
			err := errors.New("x")
			f.PolicyErr, f.EncryptionErr, f.AuthenticationErr, f.AdmissionErr = err, err, err, err
		}, map[string]cis.Verdict{"1.2.1": cis.NotChecked, "1.2.27": cis.NotChecked, "1.2.28": cis.NotChecked,
			"3.1.1": cis.NotChecked, "3.2.1": cis.NotChecked, "3.2.2": cis.NotChecked, "5.2.1": cis.NotChecked,
			"5.2.2": cis.NotChecked, "5.4.2": cis.NotChecked}},
		"default level of namespaces": {func(f *Facts) { openNamespace(f); f.PodSecurityLevel = baseline },
			map[string]cis.Verdict{"5.2.1": cis.Pass, "5.2.2": cis.Pass, "5.2.6": cis.Manual}},
		"exempt namespace": {func(f *Facts) { f.PodSecurityExempt = []string{"team"} },
			map[string]cis.Verdict{"5.2.2": cis.Manual}},
		"webhook instead of levels": {func(f *Facts) { disabled("PodSecurity")(f); f.Cluster.Policies = []string{"w"} },
			map[string]cis.Verdict{"5.2.1": cis.Manual}},
		"old TLS": {func(f *Facts) { f.Server.OldTLS = "TLS 1.1" },
			map[string]cis.Verdict{"1.2.29": cis.Fail}},
		"discovery denied": {func(f *Facts) { f.Server.RBAC = Review{} }, map[string]cis.Verdict{"1.2.8": cis.Manual}},
		"no nodes": {func(f *Facts) { f.Cluster.Nodes = nil },
			map[string]cis.Verdict{"5.3.1": cis.NotApplicable}},
		"default account with a role": {func(f *Facts) {
			f.Cluster.grant("x", "y")
			f.Cluster.ClusterRoleBindings[2].Subjects[0] = rbacv1.Subject{Kind: "ServiceAccount", Name: "default"}
		}, map[string]cis.Verdict{"5.1.5": cis.Fail}},
		"permission of one team": {func(f *Facts) {
			f.Cluster.Roles = []rbacv1.Role{{ObjectMeta: meta("team", "r"), Rules: []rbacv1.PolicyRule{
				{Verbs: []string{"*"}, APIGroups: []string{""}, Resources: []string{"secrets"}}}}}
			f.Cluster.RoleBindings = []rbacv1.RoleBinding{{ObjectMeta: meta("team", "b"),
				RoleRef: rbacv1.RoleRef{Kind: "Role", Name: "r"}}}
		}, map[string]cis.Verdict{"5.1.2": cis.Manual, "5.1.4": cis.Pass, "5.1.3": cis.Manual}},
		"pods of the system": {func(f *Facts) {
			openNamespace(f)
			f.Cluster.Pods[0].Namespace, f.Cluster.Pods[0].Spec.HostPID = "kube-system", true
		}, map[string]cis.Verdict{"5.2.3": cis.Manual}},
	} {
		f := hardened()
		c.change(f)
		for id, want := range c.want {
			if got := finding(f, id); got.Verdict != want {
				t.Errorf("%s: %s: got %+v, want %s", name, id, got, want)
			}
		}
	}
}

// TestUnsafePodsAreNamed checks that the evidence of section 5.2 names pods with the property.
func TestUnsafePodsAreNamed(t *testing.T) {
	t.Parallel()
	on, root := true, int64(0)
	context := func(s *corev1.PodSpec) *corev1.SecurityContext { return s.Containers[0].SecurityContext }
	for id, change := range map[string]func(*corev1.PodSpec){
		"5.2.2": func(s *corev1.PodSpec) { context(s).Privileged = &on },
		"5.2.3": func(s *corev1.PodSpec) { s.HostPID = true },
		"5.2.4": func(s *corev1.PodSpec) { s.HostIPC = true },
		"5.2.5": func(s *corev1.PodSpec) { s.HostNetwork = true },
		"5.2.6": func(s *corev1.PodSpec) { context(s).AllowPrivilegeEscalation = nil },
		"5.2.7": func(s *corev1.PodSpec) { s.SecurityContext.RunAsNonRoot, context(s).RunAsUser = nil, &root },
		"5.2.8": func(s *corev1.PodSpec) { context(s).Capabilities.Add = []corev1.Capability{"NET_RAW"} },
		"5.2.9": func(s *corev1.PodSpec) { context(s).Capabilities = nil },
		"5.2.11": func(s *corev1.PodSpec) {
			s.Volumes = []corev1.Volume{{VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{}}}}
		},
		"5.2.12": func(s *corev1.PodSpec) { s.Containers[0].Ports = []corev1.ContainerPort{{HostPort: 80}} },
	} {
		f := hardened()
		openNamespace(f)
		if got := finding(f, id).Evidence; !strings.HasSuffix(got, "no pod of users has it now") {
			t.Errorf("%s: got %q for a safe pod", id, got)
		}
		withPod(change)(f)
		if got := finding(f, id).Evidence; !strings.HasSuffix(got, "pods that have it: team/web") {
			t.Errorf("%s: got %q for an unsafe pod", id, got)
		}
	}
}
