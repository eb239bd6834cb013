package apiserver

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"maps"
	"slices"

	certsv1 "k8s.io/api/certificates/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"

	"berth/agent/plan"
	"berth/agent/source"
	"berth/internal/apiclient"
	"berth/podspec"
)

// errNoTrustBundles replaces the error of a server that does not know the kind.
var errNoTrustBundles = errors.New("the API server does not serve ClusterTrustBundles (certificates.k8s.io/v1)")

// watchTrustBundles watches the ClusterTrustBundle of a name, or those of a signer that match a label selector. Several
// pods with the same reference share the watch.
func (s *Source) watchTrustBundles(ctx context.Context, key source.ObjectKey, u *object) {
	name, signer, text := podspec.ParseTrustBundleName(key.Name)
	selector, err := labels.Parse(text)
	if err != nil {
		u.lastErr = err.Error()
		return
	}
	of := apiclient.ByName(name)
	if signer != "" {
		of = fields.OneTermEqualSelector("spec.signerName", signer)
	}
	found := map[string]string{} // trust bundles by name, read by the goroutine of the watch only
	add := func(o runtime.Object) {
		b, ok := o.(*certsv1.ClusterTrustBundle)
		if ok && selector.Matches(labels.Set(b.Labels)) {
			found[b.Name] = b.Spec.TrustBundle
		} else if ok {
			delete(found, b.Name)
		}
	}
	publish := func() {
		value := plan.Object{Version: plan.Version{Missing: true}}
		if len(found) > 0 {
			value = trustAnchors(found)
		}
		s.do(func() {
			if ctx.Err() == nil {
				s.set(u, value)
			}
		})
	}
	s.watch(ctx, apiclient.WatchOptions{
		Resource: apiclient.ClusterTrustBundles, FieldSelector: of,
		OnReplace: func(list []runtime.Object) {
			clear(found)
			for _, o := range list {
				add(o)
			}
			publish()
		},
		OnUpdate: func(o runtime.Object) {
			add(o)
			publish()
		},
		OnDelete: func(o runtime.Object) {
			if b, ok := o.(*certsv1.ClusterTrustBundle); ok {
				delete(found, b.Name)
				publish()
			}
		},
		OnError: func(err error) {
			if apierrors.IsNotFound(err) {
				err = errNoTrustBundles
			}
			s.do(func() { u.lastErr = errorText(err) })
		},
	})
}

// trustAnchors returns the certificates of trust bundles, each once, without headers and comments. The order depends on
// the certificates only, so that the version changes with them.
func trustAnchors(bundles map[string]string) plan.Object {
	certificates := map[string]bool{} // DER
	for _, text := range bundles {
		for rest := []byte(text); ; {
			var block *pem.Block
			if block, rest = pem.Decode(rest); block == nil {
				break
			}
			if block.Type == "CERTIFICATE" {
				certificates[string(block.Bytes)] = true
			}
		}
	}
	var out []byte
	for _, der := range slices.Sorted(maps.Keys(certificates)) {
		out = append(out, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: []byte(der)})...)
	}
	hash := sha256.Sum256(out)
	return plan.Object{TrustBundle: string(out), Version: plan.Version{Version: hex.EncodeToString(hash[:])}}
}
