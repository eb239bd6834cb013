package registry

import (
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"berth/control/validation"
)

// validatePodCertificateStatus applies the rules of the kind, and the one that depends on the current time.
func validatePodCertificateStatus(obj, old runtime.Object) field.ErrorList {
	r, _ := validation.RulesFor(schema.GroupKind{Group: certificatesv1.GroupName, Kind: "PodCertificateRequest"},
		validation.Compilers{})
	return append(r.ValidateStatus(obj, old), validation.IssuedNow(
		MustCast[*certificatesv1.PodCertificateRequest](obj), MustCast[*certificatesv1.PodCertificateRequest](old),
		time.Now())...)
}

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
		{
			GroupVersion: certificates, Resource: "clustertrustbundles", Singular: "clustertrustbundle",
			ClusterScoped: true, RequireResourceVersion: true,
			New:        func() runtime.Object { return &certificatesv1.ClusterTrustBundle{} },
			NewList:    func() runtime.Object { return &certificatesv1.ClusterTrustBundleList{} },
			FieldNames: []string{"spec.signerName"},
			Fields: fieldsFunc(func(b *certificatesv1.ClusterTrustBundle) fields.Set {
				return fields.Set{"spec.signerName": b.Spec.SignerName}
			}),
		},
		{
			GroupVersion: certificates, Resource: "podcertificaterequests", Singular: "podcertificaterequest",
			RequireResourceVersion: true, Status: true,
			New:        func() runtime.Object { return &certificatesv1.PodCertificateRequest{} },
			NewList:    func() runtime.Object { return &certificatesv1.PodCertificateRequestList{} },
			FieldNames: []string{"spec.signerName", "spec.podName", "spec.nodeName"},
			Fields: fieldsFunc(func(r *certificatesv1.PodCertificateRequest) fields.Set {
				return fields.Set{"spec.signerName": r.Spec.SignerName, "spec.podName": r.Spec.PodName,
					"spec.nodeName": string(r.Spec.NodeName)}
			}),
			ValidateStatus: validatePodCertificateStatus, PrepareStatus: keepLabels,
		},
	}
}
