package validation

import (
	"bytes"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"maps"
	"slices"
	"strings"

	certificatesv1 "k8s.io/api/certificates/v1"
	"k8s.io/apimachinery/pkg/api/validate/content"
	machinery "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

const maxTrustBundle = 1 << 20 // in bytes

// omitted is printed instead of a value.
const omitted = "<value omitted>"

// signer validates the name of a signer.
func (k *validator) signer(at *field.Path, name string) {
	domain, path, found := strings.Cut(name, "/")
	switch {
	case name == "":
		k.Required(at, "")
	case !found || path == "" || strings.Contains(path, "/"):
		k.Invalid(at, name, "must be a fully qualified domain and path of the form 'example.com/signer-name'")
	default:
		k.InvalidEach(at, name, content.IsDNS1123Subdomain(domain))
		k.InvalidEach(at, name, content.IsDNS1123Subdomain(path))
		if !strings.Contains(domain, ".") {
			k.Invalid(at, name, "should be a domain with at least two segments separated by dots")
		}
	}
}

// trustBundle validates name and signer of a ClusterTrustBundle. The name of one with a signer begins with the signer,
// so that names of different signers never collide.
func (k *validator) trustBundle(b *certificatesv1.ClusterTrustBundle) {
	name, at := b.Name, metadata.Child("name")
	if b.Spec.SignerName != "" {
		k.signer(spec.Child("signerName"), b.Spec.SignerName)
		prefix := strings.ReplaceAll(b.Spec.SignerName, "/", ":") + ":"
		if !strings.HasPrefix(name, prefix) {
			k.Invalid(at, name, "ClusterTrustBundle for signerName %s must be named with prefix %s", b.Spec.SignerName,
				prefix)
			return
		}
		name = strings.TrimPrefix(name, prefix)
	} else if strings.Contains(name, ":") {
		k.Invalid(at, name, "ClusterTrustBundle without signer name must not have \":\" in its name")
		return
	}
	k.InvalidEach(at, b.Name, machinery.NameIsDNSSubdomain(name, false))
}

// trustAnchors validates the certificates of a ClusterTrustBundle.
func (k *validator) trustAnchors(text string) {
	at := spec.Child("trustBundle")
	if len(text) > maxTrustBundle {
		k.Add(field.TooLong(at, "", maxTrustBundle))
		return
	}
	indexes, malformed := map[string][]int{}, false
	rest := []byte(text)
	for i := 0; ; i++ {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			break
		}
		if message := trustAnchorError(block); message != "" {
			k.Invalid(at, omitted, "entry %d %s", i, message)
			malformed = true
			continue
		}
		indexes[string(block.Bytes)] = append(indexes[string(block.Bytes)], i)
	}
	if malformed {
		return
	}
	if len(indexes) == 0 {
		k.Invalid(at, omitted, "at least one trust anchor must be provided")
	}
	for _, of := range slices.SortedFunc(maps.Values(indexes), slices.Compare) {
		if len(of) > 1 {
			k.Invalid(at, omitted, "duplicate trust anchor (indices %v)", of)
		}
	}
}

// trustAnchorError returns what is wrong with a block, or "".
func trustAnchorError(block *pem.Block) string {
	if block.Type != "CERTIFICATE" {
		return fmt.Sprintf("has bad block type: %v", block.Type)
	}
	if len(block.Headers) > 0 {
		return "has PEM block headers"
	}
	certificate, err := x509.ParseCertificate(block.Bytes)
	switch {
	case err != nil || !bytes.Equal(certificate.Raw, block.Bytes):
		return "does not parse as X.509"
	case !certificate.IsCA:
		return "does not have the CA bit set"
	case !certificate.BasicConstraintsValid:
		return "has invalid basic constraints"
	}
	return ""
}

// anyName accepts each name: it depends on the signer, see trustBundle.
func anyName(string, bool) []string { return nil }

// trustBundleUpdate validates an updated ClusterTrustBundle. Unchanged certificates are not parsed again.
func (k *validator) trustBundleUpdate(b, old *certificatesv1.ClusterTrustBundle) {
	k.Immutable(spec.Child("signerName"), b.Spec.SignerName, old.Spec.SignerName)
	if b.Spec.TrustBundle != old.Spec.TrustBundle {
		k.trustAnchors(b.Spec.TrustBundle)
	}
}

// uid validates a required UID.
func (k *validator) uid(at *field.Path, value string) {
	const longest = 128
	switch {
	case value == "":
		k.Invalid(at, value, "must not be empty")
	case len(value) > longest:
		k.Add(field.TooLong(at, value, longest))
	}
}

// userAnnotations validates annotations whose keys all have a domain.
func (k *validator) userAnnotations(at *field.Path, list map[string]string) {
	k.AddAll(machinery.ValidateAnnotations(list, at))
	for _, key := range slices.Sorted(maps.Keys(list)) {
		if !strings.Contains(key, "/") {
			k.Invalid(at, key, "must be a domain-prefixed key (such as \"acme.io/foo\")")
		}
	}
}

// object validates the name of a referenced object.
func (k *validator) object(at *field.Path, name string) {
	k.InvalidEach(at, name, validation.IsDNS1123Subdomain(name))
}
