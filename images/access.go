package images

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	kubeletv1beta1 "k8s.io/kubelet/config/v1beta1"

	"berth/agent/plan"
	"berth/podspec"
)

// Verification says of which images that are on the node already a pod has to
// show credentials before it may use them. The zero value is NeverVerify.
type Verification struct {
	Policy     kubeletv1beta1.ImagePullCredentialsVerificationPolicy // empty: NeverVerify
	Allowlist  []podspec.ImagePattern                                // with NeverVerifyAllowlistedImages
	RecordsDir string                                                // directory of the records of pulls: <root-dir>/image_manager
}

// needed reports whether the pod must be known to have access to an image.
// Pulled says that the image was pulled for pods, not brought by other means.
func (v Verification) needed(n podspec.ImageName, pulled bool) bool {
	switch v.Policy {
	case kubeletv1beta1.AlwaysVerify:
		return true
	case kubeletv1beta1.NeverVerifyPreloadedImages:
		return pulled
	case kubeletv1beta1.NeverVerifyAllowlistedImages:
		return !slices.ContainsFunc(v.Allowlist, func(p podspec.ImagePattern) bool { return p.Matches(n) })
	}
	return false
}

// Results of a check, as upstream's metric names them.
const (
	checkExempt  = "credentialPolicyAllowed"
	checkFound   = "credentialRecordFound"
	checkMustAsk = "mustAuthenticate"
)

// mayUse reports whether a pod may use an image that is here. One that may not
// is to be told what a pod is told whose image is absent: that an image is on
// the node is nobody's business who may not have it.
func (i *Manager) mayUse(pod *corev1.Pod, n podspec.ImageName, id string, secrets plan.Objects) bool {
	known, pulled := i.pullLog.of(n, id)
	result := checkMustAsk
	switch {
	case !i.verify.needed(n, pulled):
		result = checkExempt
	case known.NodePodsAccessible:
		result = checkFound
	case len(known.KubernetesSecrets) > 0:
		ring, _ := newKeyring(pod.Namespace, pod.Spec.ImagePullSecrets, secrets)
		for _, c := range ring.find(n) {
			if match(known, c) {
				i.pullLog.add(n, id, c)
				result = checkFound
				break
			}
		}
	}
	i.checked(result)
	return result != checkMustAsk
}

// match reports whether an image was pulled with these credentials: with the
// same ones whatever Secret they were in, or with those that the same Secret
// held before. A Secret from a file has no UID: another of its name is another.
func match(known kubeletv1beta1.ImagePullCredentials, c credentials) bool {
	return slices.ContainsFunc(known.KubernetesSecrets, func(s kubeletv1beta1.ImagePullSecret) bool {
		return s.CredentialHash == c.hash() || s.UID != "" && sameSecret(s, c.record())
	})
}

func sameSecret(a, b kubeletv1beta1.ImagePullSecret) bool {
	return a.UID == b.UID && a.Namespace == b.Namespace && a.Name == b.Name
}

// hash tells credentials apart without telling what they are.
func (c credentials) hash() string {
	sum := sha256.Sum256(fmt.Appendf(nil, "%q %q %q %q", c.username, c.password, c.identityToken, c.registryToken))
	return hex.EncodeToString(sum[:])
}

// record is how the credentials are written down.
func (c credentials) record() kubeletv1beta1.ImagePullSecret {
	return kubeletv1beta1.ImagePullSecret{UID: c.uid, Namespace: c.namespace, Name: c.source, CredentialHash: c.hash()}
}

// maxSecrets bounds how many Secrets are written down of one image.
const maxSecrets = 100

// merged adds credentials that an image was pulled with to those known; none at
// all say that anybody may pull it, and then nothing else counts.
func merged(known kubeletv1beta1.ImagePullCredentials, c credentials) (_ kubeletv1beta1.ImagePullCredentials, changed bool) {
	switch {
	case known.NodePodsAccessible:
		return known, false
	case c == credentials{}:
		return kubeletv1beta1.ImagePullCredentials{NodePodsAccessible: true}, true
	}
	now := c.record()
	at := slices.IndexFunc(known.KubernetesSecrets, func(s kubeletv1beta1.ImagePullSecret) bool { return sameSecret(s, now) })
	switch {
	case at >= 0 && known.KubernetesSecrets[at] == now, at < 0 && len(known.KubernetesSecrets) >= maxSecrets:
		return known, false
	case at >= 0:
		known.KubernetesSecrets = slices.Clone(known.KubernetesSecrets)
		known.KubernetesSecrets[at] = now
	default:
		known.KubernetesSecrets = append(slices.Clip(known.KubernetesSecrets), now)
	}
	return known, true
}
