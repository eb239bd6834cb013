package images

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	kubeletv1beta1 "k8s.io/kubelet/config/v1beta1"

	"berth/agent/plan"
	"berth/podspec"
)

// Verification configures which images that are already on the node require a pod to show
// credentials. The zero value is NeverVerify.
type Verification struct {
	Policy    kubeletv1beta1.ImagePullCredentialsVerificationPolicy // empty: NeverVerify
	Allowlist []podspec.ImagePattern                                // for NeverVerifyAllowlistedImages
	// directory of the pull records: <root-dir>/image_manager
	RecordsDir string
}

// needed reports whether a pod has to prove its access to an image. pulled means that the image was
// pulled for pods, not loaded by other means.
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

// Results of a check, named as in the kubelet's metric.
const (
	resultPolicyAllowed    = "credentialPolicyAllowed"
	resultRecordFound      = "credentialRecordFound"
	resultMustAuthenticate = "mustAuthenticate"
)

// verifyAccess reports whether a pod may use an image that is on the node. A pod that may not must
// get the same result as for an absent image: whether an image is on the node is confidential.
func (m *Manager) verifyAccess(
	ctx context.Context, pod *corev1.Pod, n podspec.ImageName, id string, secrets plan.Objects,
) bool {
	known, pulled := m.records.lookup(n, id)
	result := resultMustAuthenticate
	switch {
	case !m.verify.needed(n, pulled):
		result = resultPolicyAllowed
	case known.NodePodsAccessible:
		result = resultRecordFound
	case m.matchesAccount(ctx, known, pod):
		result = resultRecordFound
	case len(known.KubernetesSecrets) > 0:
		ring, _ := newKeyring(pod.Namespace, pod.Spec.ImagePullSecrets, secrets)
		for _, c := range ring.find(n) {
			if matchesRecord(known, c) {
				m.records.add(n, id, c)
				result = resultRecordFound
				break
			}
		}
	}
	m.onCheck(result)
	return result != resultMustAuthenticate
}

// matchesAccount reports whether an image was pulled with credentials for the service account of a pod.
func (m *Manager) matchesAccount(
	ctx context.Context, known kubeletv1beta1.ImagePullCredentials, pod *corev1.Pod,
) bool {
	i := slices.IndexFunc(known.KubernetesServiceAccounts, func(a kubeletv1beta1.ImagePullServiceAccount) bool {
		return a.Namespace == pod.Namespace && a.Name == pod.Spec.ServiceAccountName
	})
	if i < 0 {
		return false
	}
	uid, ok := m.node.accountUID(ctx, pod)
	return ok && slices.Contains(known.KubernetesServiceAccounts, kubeletv1beta1.ImagePullServiceAccount{
		UID: string(uid), Namespace: pod.Namespace, Name: pod.Spec.ServiceAccountName})
}

// matchesRecord reports whether an image was pulled with these credentials: with the same ones from
// any Secret, or with earlier ones of the same Secret. A Secret from a file has no UID, so it never
// matches by name alone.
func matchesRecord(known kubeletv1beta1.ImagePullCredentials, c credentials) bool {
	return slices.ContainsFunc(known.KubernetesSecrets, func(s kubeletv1beta1.ImagePullSecret) bool {
		return s.CredentialHash == c.hash() || s.UID != "" && sameSecret(s, c.record())
	})
}

func sameSecret(a, b kubeletv1beta1.ImagePullSecret) bool {
	return a.UID == b.UID && a.Namespace == b.Namespace && a.Name == b.Name
}

// hash distinguishes credentials without revealing them.
func (c credentials) hash() string {
	sum := sha256.Sum256(fmt.Appendf(nil, "%q %q %q %q", c.username, c.password, c.identityToken, c.registryToken))
	return hex.EncodeToString(sum[:])
}

// record returns the persisted form of the credentials.
func (c credentials) record() kubeletv1beta1.ImagePullSecret {
	return kubeletv1beta1.ImagePullSecret{UID: c.uid, Namespace: c.namespace, Name: c.source, CredentialHash: c.hash()}
}

// maxSecrets bounds the number of Secrets that are recorded per image.
const maxSecrets = 100

// mergeCredentials adds the credentials of a pull to the recorded ones. Empty credentials and those of the
// node mean that every pod may pull the image, and replace all others.
func mergeCredentials(known kubeletv1beta1.ImagePullCredentials,
	c credentials) (_ kubeletv1beta1.ImagePullCredentials, changed bool) {
	switch {
	case known.NodePodsAccessible:
		return known, false
	case c == credentials{}, c.kind == nodeCredentials:
		return kubeletv1beta1.ImagePullCredentials{NodePodsAccessible: true}, true
	case c.kind == accountCredentials:
		now := kubeletv1beta1.ImagePullServiceAccount{UID: c.uid, Namespace: c.namespace, Name: c.source}
		list := known.KubernetesServiceAccounts
		if slices.Contains(list, now) || len(list) >= maxSecrets {
			return known, false
		}
		known.KubernetesServiceAccounts = append(slices.Clip(list), now)
		return known, true
	}
	now := c.record()
	at := slices.IndexFunc(known.KubernetesSecrets, func(s kubeletv1beta1.ImagePullSecret) bool {
		return sameSecret(s,
			now)
	})
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
