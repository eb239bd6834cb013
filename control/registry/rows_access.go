package registry

import (
	certificatesv1 "k8s.io/api/certificates/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
)

func access() []*Kind {
	rbac, certificates := rbacv1.SchemeGroupVersion, certificatesv1.SchemeGroupVersion
	return []*Kind{
		{
			Version: rbac, Resource: "roles", Singular: "role", UpsertByPut: true,
			New: func() runtime.Object { return &rbacv1.Role{} }, NewList: func() runtime.Object { return &rbacv1.RoleList{} },
		},
		{
			Version: rbac, Resource: "rolebindings", Singular: "rolebinding", UpsertByPut: true,
			New: func() runtime.Object { return &rbacv1.RoleBinding{} }, NewList: func() runtime.Object { return &rbacv1.RoleBindingList{} },
		},
		{
			Version: rbac, Resource: "clusterroles", Singular: "clusterrole", Cluster: true, UpsertByPut: true,
			New: func() runtime.Object { return &rbacv1.ClusterRole{} }, NewList: func() runtime.Object { return &rbacv1.ClusterRoleList{} },
		},
		{
			Version: rbac, Resource: "clusterrolebindings", Singular: "clusterrolebinding", Cluster: true, UpsertByPut: true,
			New: func() runtime.Object { return &rbacv1.ClusterRoleBinding{} }, NewList: func() runtime.Object { return &rbacv1.ClusterRoleBindingList{} },
		},
		{
			Version: certificates, Resource: "certificatesigningrequests", Singular: "certificatesigningrequest", Short: []string{"csr"}, Cluster: true,
			New: func() runtime.Object { return &certificatesv1.CertificateSigningRequest{} }, NewList: func() runtime.Object { return &certificatesv1.CertificateSigningRequestList{} },
			Status: true, FieldNames: []string{"spec.signerName"},
			Fields: selectable(func(r *certificatesv1.CertificateSigningRequest) fields.Set {
				return fields.Set{"spec.signerName": r.Spec.SignerName}
			}),
		},
	}
}
