package content

import (
	"errors"

	corev1 "k8s.io/api/core/v1"

	"berth/agent/plan"
	"berth/podspec"
)

// projected adds the files of all sources in order.
func (b *builder) projected(volume string, src *corev1.ProjectedVolumeSource) error {
	for i := range src.Sources {
		s := &src.Sources[i]
		d := defaults{mode: src.DefaultMode, uid: src.DefaultUser}
		var err error
		switch {
		case s.ConfigMap != nil:
			err = b.object(keyed{
				ref: plan.Ref{
					Kind: plan.ConfigMap,
					Name: s.ConfigMap.Name,
				},
				items:    s.ConfigMap.Items,
				optional: s.ConfigMap.Optional,
				defaults: d,
			})
		case s.Secret != nil:
			err = b.object(keyed{
				ref: plan.Ref{
					Kind: plan.Secret,
					Name: s.Secret.Name,
				},
				items:    s.Secret.Items,
				optional: s.Secret.Optional,
				defaults: d,
			})
		case s.ServiceAccountToken != nil:
			err = b.token(s.ServiceAccountToken, d)
		case s.ClusterTrustBundle != nil:
			err = b.trustBundle(s.ClusterTrustBundle, d)
		case s.PodCertificate != nil:
			err = b.podCertificate(podspec.PodCertificateName(volume, i), s.PodCertificate, d)
		case s.DownwardAPI != nil:
			err = b.downward(s.DownwardAPI.Items, d)
		default:
			err = invalid("projected.sources[%d]: unknown source", i)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// token adds the service account token of the pod.
func (b *builder) token(src *corev1.ServiceAccountTokenProjection, d defaults) error {
	obj := b.in.Objects[plan.Ref{Kind: plan.ServiceAccountToken, Name: podspec.TokenName(src)}]
	switch {
	case obj.Pending:
		return &plan.Error{Err: errors.New("service account token not issued yet")}
	case obj.Err != "":
		return &plan.Error{Err: errors.New(obj.Err)}
	case obj.Token == "":
		return notFound("no service account token: the pod was not assigned by an API server")
	}
	return b.add(src.Path, d.file([]byte(obj.Token), nil, src.User), true)
}

// trustBundle adds the certificates of ClusterTrustBundles. Without any, an optional file is empty.
func (b *builder) trustBundle(src *corev1.ClusterTrustBundleProjection, d defaults) error {
	name := podspec.TrustBundleName(src)
	obj, known := b.in.Objects[plan.Ref{Kind: plan.ClusterTrustBundle, Name: name}]
	missing := !known || obj.Missing
	switch {
	case obj.Pending:
		return &plan.Error{Err: errors.New("cluster trust bundle has not been read yet")}
	case obj.Err != "":
		return &plan.Error{Err: errors.New(obj.Err)}
	case missing && (src.Optional == nil || !*src.Optional):
		return notFound("%s", podspec.TrustBundleNotFound(name))
	}
	return b.add(src.Path, d.file([]byte(obj.TrustBundle), nil, src.User), true)
}

// podCertificate adds the key and the certificate chain of a source, in one file, in two, or both.
func (b *builder) podCertificate(name string, src *corev1.PodCertificateProjection, d defaults) error {
	obj := b.in.Objects[plan.Ref{Kind: plan.PodCertificates, Name: name}]
	switch {
	case obj.Pending:
		return &plan.Error{Err: errors.New("pod certificate not issued yet")}
	case obj.Err != "":
		return &plan.Error{Err: errors.New(obj.Err)}
	case obj.PodCertificate == nil:
		return notFound("no pod certificate: the pod was not assigned by an API server")
	}
	for _, f := range []struct{ path, text string }{
		{src.CredentialBundlePath, obj.PodCertificate.Key + obj.PodCertificate.Chain},
		{src.KeyPath, obj.PodCertificate.Key},
		{src.CertificateChainPath, obj.PodCertificate.Chain},
	} {
		if f.path == "" {
			continue
		}
		if err := b.add(f.path, d.file([]byte(f.text), nil, src.User), true); err != nil {
			return err
		}
	}
	return nil
}
