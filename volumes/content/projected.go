package content

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"berth/agent/plan"
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

// unsupported names the source that needs a server or a signer to be made.
func unsupported(i int, s *corev1.VolumeProjection) error {
	word := "an unknown source"
	switch {
	case s.ServiceAccountToken != nil:
		word = "serviceAccountToken"
	case s.ClusterTrustBundle != nil:
		word = "clusterTrustBundle"
	case s.PodCertificate != nil:
		word = "podCertificate"
	}
	return &plan.Error{Kind: plan.Unsupported, Err: fmt.Errorf("projected.sources[%d]: %s is not supported on this node", i, word)}
}
