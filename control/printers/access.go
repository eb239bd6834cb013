package printers

import (
	"cmp"
	"slices"
	"strings"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/duration"
)

func rbac(kind string) schema.GroupKind {
	return schema.GroupKind{Group: "rbac.authorization.k8s.io", Kind: kind}
}

var (
	roleDefinitions = []metav1.TableColumnDefinition{
		nameColumn,
		stringColumn("Created At", "Creation time."),
	}
	bindingDefinitions = []metav1.TableColumnDefinition{
		nameColumn, stringColumn("Role", "Role of the binding."), ageColumn,
		wideColumn(stringColumn("Users", "Users in the role binding.")),
		wideColumn(stringColumn("Groups", "Groups in the role binding.")),
		wideColumn(stringColumn("ServiceAccounts", "Service accounts in the role binding.")),
	}
)

var accessKinds = map[schema.GroupKind]Columns{
	rbac("Role"): columnsOf(func(r *rbacv1.Role, _ time.Time) []any {
		return []any{r.Name, r.CreationTimestamp.UTC().Format(time.RFC3339)}
	}, roleDefinitions...),
	rbac("ClusterRole"): columnsOf(func(r *rbacv1.ClusterRole, _ time.Time) []any {
		return []any{r.Name, r.CreationTimestamp.UTC().Format(time.RFC3339)}
	}, roleDefinitions...),
	rbac("RoleBinding"): columnsOf(func(b *rbacv1.RoleBinding, now time.Time) []any {
		return bindingRow(&b.ObjectMeta, b.RoleRef, b.Subjects, now)
	}, bindingDefinitions...),
	rbac("ClusterRoleBinding"): columnsOf(func(b *rbacv1.ClusterRoleBinding, now time.Time) []any {
		return bindingRow(&b.ObjectMeta, b.RoleRef, b.Subjects, now)
	}, bindingDefinitions...),
	{Group: "certificates.k8s.io", Kind: "CertificateSigningRequest"}: columnsOf(
		requestRow,
		nameColumn,
		ageColumn,
		stringColumn("SignerName", "Requested signer."),
		stringColumn("Requestor", "User that created the request."),
		stringColumn(
			"RequestedDuration",
			"Requested validity of the certificate.",
		),
		stringColumn("Condition", "State of the request."),
	),
	{Group: "certificates.k8s.io", Kind: "ClusterTrustBundle"}: columnsOf(
		func(b *certificatesv1.ClusterTrustBundle, _ time.Time) []any {
			return []any{b.Name, cmp.Or(b.Spec.SignerName, none)}
		},
		nameColumn,
		stringColumn("SignerName", "Signer that the certificates belong to."),
	),
	{Group: "certificates.k8s.io", Kind: "PodCertificateRequest"}: columnsOf(
		podCertificateRow,
		nameColumn,
		stringColumn("PodName", "Pod that uses the certificate."),
		stringColumn("ServiceAccountName", "Service account of the pod."),
		stringColumn("NodeName", "Node of the pod."),
		stringColumn("SignerName", "Requested signer."),
		stringColumn("State", "State of the request."),
	),
}

func bindingRow(m *metav1.ObjectMeta, role rbacv1.RoleRef, subjects []rbacv1.Subject, now time.Time) []any {
	var users, groups, accounts []string
	for _, s := range subjects {
		switch s.Kind {
		case rbacv1.UserKind:
			users = append(users, s.Name)
		case rbacv1.GroupKind:
			groups = append(groups, s.Name)
		case rbacv1.ServiceAccountKind:
			accounts = append(accounts, s.Namespace+"/"+s.Name)
		}
	}
	return []any{m.Name, role.Kind + "/" + role.Name, age(m.CreationTimestamp, now),
		strings.Join(users, ", "), strings.Join(groups, ", "), strings.Join(accounts, ", ")}
}

func podCertificateRow(r *certificatesv1.PodCertificateRequest, _ time.Time) []any {
	state := "Pending"
	for _, c := range r.Status.Conditions {
		switch c.Type {
		case certificatesv1.PodCertificateRequestConditionTypeDenied,
			certificatesv1.PodCertificateRequestConditionTypeFailed,
			certificatesv1.PodCertificateRequestConditionTypeIssued:
			state = c.Type
		}
	}
	return []any{r.Name, r.Spec.PodName, r.Spec.ServiceAccountName, string(r.Spec.NodeName), r.Spec.SignerName, state}
}

func requestRow(r *certificatesv1.CertificateSigningRequest, now time.Time) []any {
	requested := none
	if s := r.Spec.ExpirationSeconds; s != nil {
		requested = duration.HumanDuration(time.Duration(*s) * time.Second)
	}
	return []any{r.Name, age(r.CreationTimestamp, now), r.Spec.SignerName, r.Spec.Username, requested, requestStatus(r)}
}

func requestStatus(r *certificatesv1.CertificateSigningRequest) string {
	hasCondition := func(kind certificatesv1.RequestConditionType) bool {
		return slices.ContainsFunc(
			r.Status.Conditions,
			func(c certificatesv1.CertificateSigningRequestCondition) bool { return c.Type == kind },
		)
	}
	status := "Pending"
	switch {
	case hasCondition(certificatesv1.CertificateDenied):
		status = "Denied"
	case hasCondition(certificatesv1.CertificateApproved):
		status = "Approved"
	}
	if hasCondition(certificatesv1.CertificateFailed) {
		status += ",Failed"
	}
	if len(r.Status.Certificate) > 0 {
		status += ",Issued"
	}
	return status
}
