package registry

import (
	certificatesv1 "k8s.io/api/certificates/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
)

func accessKinds() []*Kind {
	rbac, certificates := rbacv1.SchemeGroupVersion, certificatesv1.SchemeGroupVersion
	return []*Kind{
		{
			GroupVersion: rbac, Resource: "roles", Singular: "role", AllowCreateOnUpdate: true,
			New: func() runtime.Object {
				return &rbacv1.Role{}
			}, NewList: func() runtime.Object { return &rbacv1.RoleList{} },
		},
		{
			GroupVersion: rbac, Resource: "rolebindings", Singular: "rolebinding", AllowCreateOnUpdate: true,
			New:     func() runtime.Object { return &rbacv1.RoleBinding{} },
			NewList: func() runtime.Object { return &rbacv1.RoleBindingList{} },
		},
		{
			GroupVersion: rbac, Resource: "clusterroles", Singular: "clusterrole", ClusterScoped: true,
			AllowCreateOnUpdate: true,
			New:                 func() runtime.Object { return &rbacv1.ClusterRole{} },
			NewList:             func() runtime.Object { return &rbacv1.ClusterRoleList{} },
		},
		{
			GroupVersion: rbac, Resource: "clusterrolebindings", Singular: "clusterrolebinding", ClusterScoped: true,
			AllowCreateOnUpdate: true,
			New:                 func() runtime.Object { return &rbacv1.ClusterRoleBinding{} },
			NewList:             func() runtime.Object { return &rbacv1.ClusterRoleBindingList{} },
		},
		{
			GroupVersion: certificates, Resource: "certificatesigningrequests", Singular: "certificatesigningrequest",
			ShortNames: []string{"csr"}, ClusterScoped: true,
			New:     func() runtime.Object { return &certificatesv1.CertificateSigningRequest{} },
			NewList: func() runtime.Object { return &certificatesv1.CertificateSigningRequestList{} },
			Status:  true, FieldNames: []string{"spec.signerName"},
			Fields: fieldsFunc(func(r *certificatesv1.CertificateSigningRequest) fields.Set {
				return fields.Set{"spec.signerName": r.Spec.SignerName}
			}),
		},
	}
}
