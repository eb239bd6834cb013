package cis

import (
	"io/fs"
	"maps"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	auditinternal "k8s.io/apiserver/pkg/apis/audit"

	"berth/control"
	"berth/internal/cis"
)

// Facts are what the checks depend on.
type Facts struct {
	// Config is the effective configuration of the server.
	Config control.Config
	Files  Files

	// Policy is the audit policy that applies.
	Policy    *auditinternal.Policy
	PolicyErr error
	// Encryption has the resources with their providers, in the order of the file.
	Encryption    []EncryptedResources
	EncryptionErr error
	Anonymous     Anonymous
	// Issuers is the number of JWT issuers of users.
	Issuers           int
	AuthenticationErr error
	// PodSecurityLevel is the level that PodSecurity enforces in namespaces without a label, and PodSecurityExempt the
	// namespaces in which it enforces nothing.
	PodSecurityLevel  string
	PodSecurityExempt []string
	AdmissionErr      error

	Server    *Server // nil: ServerErr has the cause
	ServerErr error
	Cluster   *Cluster // nil: ClusterErr has the cause
	// ClusterErr is why the objects cannot be read, and FilesErr why the data directory cannot be read.
	ClusterErr, FilesErr error
}

// Files are the permissions of files, and what the certificates contain.
type Files struct {
	DataDir cis.File
	// Config is the configuration file; without a path: none. Units are the existing unit files.
	Config cis.File
	Units  []cis.File
	Store  cis.File
	// Admin and SuperAdmin are the kubeconfigs of administrators.
	Admin, SuperAdmin cis.File
	// AdminGroups are the groups of the certificate in Admin.
	AdminGroups []string
	// PKI has the directory with certificates and keys and the files in it.
	PKI []cis.File
	// Expired are the expired certificates of the server.
	Expired []string
}

// EncryptedResources are resources with the provider that encrypts them.
type EncryptedResources struct {
	Resources []string
	// Provider is the first provider: aescbc, aesgcm, identity, kms or secretbox.
	Provider string
}

// Anonymous describes which requests without credentials are authenticated.
type Anonymous struct {
	Enabled bool
	Paths   []string // empty: all
}

// Server is what the running server does.
type Server struct {
	URL string
	// Anonymous has the status codes of requests without credentials by path.
	Anonymous map[string]int
	// Profiling is the status code of /debug/pprof/ for the administrator.
	Profiling int
	// OldTLS is the negotiated version below TLS 1.2; empty: rejected. WeakCipher is the negotiated suite without
	// authenticated encryption or forward secrecy; empty: rejected.
	OldTLS, WeakCipher string
	// Node and RBAC are answers to SubjectAccessReviews: may a node read a Secret that it has no pod for, and may an
	// authenticated user read the discovery documents.
	Node, RBAC Review
}

// Review is the answer to a SubjectAccessReview.
type Review struct {
	Allowed bool
	Reason  string
}

// Cluster has the objects of the cluster.
type Cluster struct {
	Namespaces          []corev1.Namespace
	Nodes               []corev1.Node
	Pods                []corev1.Pod
	ServiceAccounts     []corev1.ServiceAccount
	NetworkPolicies     []networkingv1.NetworkPolicy
	ClusterRoles        []rbacv1.ClusterRole
	Roles               []rbacv1.Role
	ClusterRoleBindings []rbacv1.ClusterRoleBinding
	RoleBindings        []rbacv1.RoleBinding
	// DefaultNamespace are the objects in the namespace default that are not created by the server.
	DefaultNamespace []string
	// TokenSecrets and BootstrapTokens are the names of Secrets with tokens. WithRootCA are the namespaces with the
	// ConfigMap kube-root-ca.crt.
	TokenSecrets, BootstrapTokens, WithRootCA []string
	// Policies are the webhooks and policies that can reject pods.
	Policies []string
}

const (
	ownerOnly   fs.FileMode = 0o600
	ownerDir    fs.FileMode = 0o700
	worldRead   fs.FileMode = 0o644
	keySuffix               = ".key"
	certSuffix              = ".crt"
	statusError             = 400
)

// check returns the result of a control.
type check = func(*Facts) cis.Finding

// Controls returns the controls that Check checks.
func Controls() []cis.Control { return cis.Controls("1", "2", "3", "5") }

// Check checks all controls.
func Check(f *Facts) cis.Report {
	return cis.Check(Controls(), checks(), f)
}

// checks returns the check of each control.
func checks() map[string]check {
	all := map[string]check{}
	for _, part := range []map[string]check{
		fileChecks(), serverChecks(), controllerChecks(), storeChecks(), accessChecks(), permissionChecks(),
		podChecks(), clusterChecks(),
	} {
		maps.Copy(all, part)
	}
	return all
}

// live returns a check that needs the running server.
func live(one func(*Facts, *Server) cis.Finding) check {
	return func(f *Facts) cis.Finding {
		if f.Server == nil {
			return cis.Unknown("the server is not reachable: %v", f.ServerErr)
		}
		return one(f, f.Server)
	}
}

// ofCluster returns a check that needs the objects of the cluster.
func ofCluster(one func(*Facts, *Cluster) cis.Finding) check {
	return func(f *Facts) cis.Finding {
		if f.Cluster == nil {
			return cis.Unknown("objects cannot be read: %v", f.ClusterErr)
		}
		return one(f, f.Cluster)
	}
}

// ofFiles returns a check that needs the files in the data directory.
func ofFiles(one check) check {
	return func(f *Facts) cis.Finding {
		if f.FilesErr != nil {
			return cis.Unknown("data directory: %v", f.FilesErr)
		}
		return one(f)
	}
}

// absent returns a check whose subject never exists.
func absent(reason string) check {
	return func(*Facts) cis.Finding { return cis.Absent("%s", reason) }
}

// always returns a check that no setting can change.
func always(reason string) check {
	return func(*Facts) cis.Finding { return cis.Passed("%s", reason) }
}
