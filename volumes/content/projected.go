package content

import (
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"berth/agent/plan"
	"berth/podspec"
)

// projected adds the files of all sources in order.
func (b *builder) projected(src *corev1.ProjectedVolumeSource) error {
	for i := range src.Sources {
		s := &src.Sources[i]
		d := defaults{mode: src.DefaultMode, uid: src.DefaultUser}
		var err error
		switch {
		case s.ConfigMap != nil:
			err = b.object(keyed{
				ref: plan.Ref{Kind: plan.ConfigMap, Name: s.ConfigMap.Name}, items: s.ConfigMap.Items, optional: s.ConfigMap.Optional, defaults: d,
			})
		case s.Secret != nil:
			err = b.object(keyed{
				ref: plan.Ref{Kind: plan.Secret, Name: s.Secret.Name}, items: s.Secret.Items, optional: s.Secret.Optional, defaults: d,
			})
		case s.ServiceAccountToken != nil:
			err = b.token(s.ServiceAccountToken, d)
		case s.DownwardAPI != nil:
			err = b.downward(s.DownwardAPI.Items, d)
		default:
			err = unsupported(i, s)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// token adds the token that a server gives the pod.
func (b *builder) token(src *corev1.ServiceAccountTokenProjection, d defaults) error {
	obj := b.in.Objects[plan.Ref{Kind: plan.Token, Name: podspec.TokenName(src)}]
	switch {
	case obj.Late:
		return &plan.Error{Err: errors.New("the server has not given a service account token yet")}
	case obj.Err != "":
		return &plan.Error{Err: errors.New(obj.Err)}
	case obj.Token == "":
		return notFound("there is no service account token for this pod: it was not assigned by a server")
	}
	return b.add(src.Path, d.file([]byte(obj.Token), nil, src.User), true)
}

// unsupported names the source that needs a server or a signer to be made.
func unsupported(i int, s *corev1.VolumeProjection) error {
	word := "an unknown source"
	switch {
	case s.ClusterTrustBundle != nil:
		word = "clusterTrustBundle"
	case s.PodCertificate != nil:
		word = "podCertificate"
	}
	return &plan.Error{Kind: plan.Unsupported, Err: fmt.Errorf("projected.sources[%d]: %s is not supported on this node", i, word)}
}
