package controllers

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"strings"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

const (
	// apiServerSigner is the signer of the API server's certificate.
	apiServerSigner = "kubernetes.io/kube-apiserver-serving"
	// podCertificateRetention is how long a PodCertificateRequest is kept, as in upstream's controller.
	podCertificateRetention = 15 * time.Minute
)

// newServingTrustBundleController publishes the CA of the API server as a ClusterTrustBundle, whose name depends on the
// certificates. Other bundles of this signer are deleted.
func newServingTrustBundleController(c Config) ([]*controller, error) {
	return c.newTrustBundlePublisher(apiServerSigner, c.CABundle)
}

// newTrustBundlePublisher returns a controller that keeps one ClusterTrustBundle of a signer.
func (c Config) newTrustBundlePublisher(signer string, bundle []byte) ([]*controller, error) {
	if len(bundle) == 0 {
		return nil, nil
	}
	bundles, text := c.Informers.Certificates().V1().ClusterTrustBundles(), string(bundle)
	client := c.Client.CertificatesV1().ClusterTrustBundles()
	hash := sha256.Sum256(bundle)
	name := fmt.Sprintf("%s:%x", strings.ReplaceAll(signer, "/", ":"), hash[:12])
	ctrl := c.newController(func(ctx context.Context, _ string) (time.Duration, error) {
		have, err := bundles.Lister().Get(name)
		switch {
		case apierrors.IsNotFound(err):
			_, err = client.Create(ctx, &certificatesv1.ClusterTrustBundle{
				ObjectMeta: metav1.ObjectMeta{Name: name},
				Spec:       certificatesv1.ClusterTrustBundleSpec{SignerName: signer, TrustBundle: text},
			}, metav1.CreateOptions{})
			if apierrors.IsAlreadyExists(err) {
				err = nil
			}
		case err == nil && have.Spec.TrustBundle != text:
			next := have.DeepCopy()
			next.Spec.TrustBundle = text
			_, err = client.Update(ctx, next, metav1.UpdateOptions{})
		}
		if err != nil {
			return 0, fmt.Errorf("publish ClusterTrustBundle %s: %w", name, err)
		}
		all, err := bundles.Lister().List(labels.Everything())
		if err != nil {
			return 0, fmt.Errorf("list ClusterTrustBundles: %w", err)
		}
		var errs []error
		for _, b := range all {
			if b.Name == name || b.Spec.SignerName != signer {
				continue
			}
			if err := client.Delete(ctx, b.Name, metav1.DeleteOptions{}); ignoreNotFound(err) != nil {
				errs = append(errs, fmt.Errorf("delete ClusterTrustBundle %s: %w", b.Name, err))
			}
		}
		return 0, errors.Join(errs...)
	})
	ctrl.queue.Add(name)
	return []*controller{ctrl}, ctrl.watch(bundles.Informer(), func(obj any) []string {
		if b, ok := obj.(*certificatesv1.ClusterTrustBundle); ok && b.Spec.SignerName == signer {
			return []string{name}
		}
		return nil
	})
}

// newPodCertificateCleaner deletes PodCertificateRequests some minutes after their creation: nodes use them at once.
func newPodCertificateCleaner(c Config) ([]*controller, error) {
	requests := c.Informers.Certificates().V1().PodCertificateRequests()
	ctrl := c.newController(func(ctx context.Context, key string) (time.Duration, error) {
		obj, found, err := requests.Informer().GetIndexer().GetByKey(key)
		r, ok := obj.(*certificatesv1.PodCertificateRequest)
		if err != nil || !found || !ok {
			return 0, err //nolint:wrapcheck // the index of the informer
		}
		if left := time.Until(r.CreationTimestamp.Add(podCertificateRetention)); left > 0 {
			return left, nil
		}
		err = c.Client.CertificatesV1().PodCertificateRequests(r.Namespace).Delete(ctx, r.Name,
			metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &r.UID}})
		if ignoreNotFound(err) != nil {
			return 0, fmt.Errorf("delete pod certificate request %s: %w", key, err)
		}
		return 0, nil
	})
	return []*controller{ctrl}, ctrl.watch(requests.Informer(), objectKey)
}
