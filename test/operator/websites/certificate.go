package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/cert"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// installation is where the operator runs.
type installation struct {
	client    client.Client // without a cache
	namespace string
	service   string // name of the Service, the Secret and the webhook configurations
}

// prepareWebhooks writes the certificate of the webhooks to a directory and makes the API server trust it.
func (i installation) prepareWebhooks(ctx context.Context, dir string, converts bool) error {
	secret, err := i.certificate(ctx)
	if err != nil {
		return fmt.Errorf("certificate of the webhooks: %w", err)
	}
	for _, name := range []string{corev1.TLSCertKey, corev1.TLSPrivateKeyKey} {
		if err := os.WriteFile(filepath.Join(dir, name), secret.Data[name], 0o600); err != nil {
			return err
		}
	}
	return i.publish(ctx, secret.Data[corev1.TLSCertKey], converts)
}

// certificate returns the Secret with a self-signed certificate. The first replica creates it.
func (i installation) certificate(ctx context.Context) (*corev1.Secret, error) {
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: i.service, Namespace: i.namespace}}
	err := i.client.Get(ctx, client.ObjectKeyFromObject(secret), secret)
	if !apierrors.IsNotFound(err) {
		return secret, err
	}
	host := i.service + "." + i.namespace + ".svc"
	chain, key, err := cert.GenerateSelfSignedCertKey(host, nil, nil)
	if err != nil {
		return nil, err
	}
	secret.Type = corev1.SecretTypeTLS
	secret.Data = map[string][]byte{corev1.TLSCertKey: chain, corev1.TLSPrivateKeyKey: key}
	err = i.client.Create(ctx, secret)
	if apierrors.IsAlreadyExists(err) {
		err = i.client.Get(ctx, client.ObjectKeyFromObject(secret), secret)
	}
	return secret, err
}

// publish writes the certificate to the clients of the webhooks.
func (i installation) publish(ctx context.Context, bundle []byte, converts bool) error {
	name := types.NamespacedName{Name: i.service}
	mutating := &admissionregistrationv1.MutatingWebhookConfiguration{}
	validating := &admissionregistrationv1.ValidatingWebhookConfiguration{}
	if err := errors.Join(i.client.Get(ctx, name, mutating), i.client.Get(ctx, name, validating)); err != nil {
		return err
	}
	before := []client.Patch{client.MergeFrom(mutating.DeepCopy()), client.MergeFrom(validating.DeepCopy())}
	for n := range mutating.Webhooks {
		mutating.Webhooks[n].ClientConfig.CABundle = bundle
	}
	for n := range validating.Webhooks {
		validating.Webhooks[n].ClientConfig.CABundle = bundle
	}
	err := errors.Join(i.client.Patch(ctx, mutating, before[0]), i.client.Patch(ctx, validating, before[1]))
	if err != nil || !converts {
		return err
	}
	type object = map[string]any
	patch, err := json.Marshal(object{"spec": object{"conversion": object{"webhook": object{"clientConfig": object{
		"caBundle": bundle}}}}})
	if err != nil {
		return err
	}
	crd := &apiextensionsv1.CustomResourceDefinition{ObjectMeta: metav1.ObjectMeta{Name: "websites." + group}}
	return i.client.Patch(ctx, crd, client.RawPatch(types.MergePatchType, patch))
}
