package podspec

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TrustBundleName returns the name of an ObjectRef of KindTrustBundle: the name of a ClusterTrustBundle, or a signer
// (which contains a slash), "?" and a label selector. Without a label selector, "?" is missing too: nothing matches.
func TrustBundleName(p *corev1.ClusterTrustBundleProjection) string {
	switch {
	case p.Name != nil:
		return *p.Name
	case p.SignerName == nil:
		return ""
	case p.LabelSelector == nil:
		return *p.SignerName
	}
	selector, err := metav1.LabelSelectorAsSelector(p.LabelSelector)
	if err != nil { // validation has rejected it
		return *p.SignerName
	}
	return *p.SignerName + "?" + selector.String()
}

// ParseTrustBundleName returns the parts of a name of TrustBundleName: a name, or a signer with a label selector that
// labels.Parse understands.
func ParseTrustBundleName(ref string) (name, signer, selector string) {
	if !strings.Contains(ref, "/") {
		return ref, "", ""
	}
	signer, selector, selects := strings.Cut(ref, "?")
	if !selects {
		selector = "a,!a" // no object matches
	}
	return "", signer, selector
}

// TrustBundleNotFound returns the message for a name of TrustBundleName that no object matches.
func TrustBundleNotFound(ref string) string {
	if _, signer, _ := ParseTrustBundleName(ref); signer != "" {
		return fmt.Sprintf("combined signerName %q and labelSelector matched zero ClusterTrustBundles", signer)
	}
	return fmt.Sprintf("clustertrustbundle %q not found", ref)
}
