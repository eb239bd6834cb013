package controllers

import (
	"bytes"
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
)

// tokenResyncPeriod is the longest time between two checks of a token that is not due for renewal.
const tokenResyncPeriod = 24 * time.Hour

// TokenSigner signs the tokens stored in secrets of type kubernetes.io/service-account-token.
type TokenSigner interface {
	Sign(account *corev1.ServiceAccount, secret *corev1.Secret) (token string, err error)
	// RenewAt returns when the token must be signed again. The zero time means that it is not valid
	// for this account and secret.
	RenewAt(token string, account *corev1.ServiceAccount, secret *corev1.Secret) time.Time
}

// serviceAccountTokenController writes tokens into secrets of type
// kubernetes.io/service-account-token and deletes the secrets together with their account.
type serviceAccountTokenController struct {
	Config

	secrets corelisters.SecretLister
}

func newServiceAccountTokenController(c Config) ([]*controller, error) {
	if c.TokenSigner == nil {
		return nil, nil
	}
	secrets, accounts := c.Informers.Core().V1().Secrets(), c.Informers.Core().V1().ServiceAccounts()
	f := &serviceAccountTokenController{Config: c, secrets: secrets.Lister()}
	ctrl := c.newController(f.sync)
	if err := ctrl.watch(secrets.Informer(), func(obj any) []string {
		if s, ok := obj.(*corev1.Secret); ok && s.Type == corev1.SecretTypeServiceAccountToken {
			return objectKey(s)
		}
		return nil
	}); err != nil {
		return nil, err
	}
	return []*controller{ctrl}, ctrl.watch(accounts.Informer(), func(obj any) (keys []string) {
		account, ok := obj.(*corev1.ServiceAccount)
		if !ok {
			return nil
		}
		all, err := f.secrets.Secrets(account.Namespace).List(labels.Everything())
		if err != nil {
			return nil // the lister reads from memory and does not fail
		}
		for _, s := range all {
			if s.Type == corev1.SecretTypeServiceAccountToken &&
				s.Annotations[corev1.ServiceAccountNameKey] == account.Name {
				keys = append(keys, objectKey(s)...)
			}
		}
		return keys
	})
}

func (f *serviceAccountTokenController) sync(ctx context.Context, key string) (time.Duration, error) {
	namespace, name, err := cache.SplitMetaNamespaceKey(key)
	if err != nil {
		return 0, nil //nolint:nilerr // invalid key
	}
	secret, err := f.secrets.Secrets(namespace).Get(name)
	if err != nil || secret.Type != corev1.SecretTypeServiceAccountToken || secret.DeletionTimestamp != nil {
		return 0, ignoreNotFound(err)
	}
	// Read from the API server: an account created together with its secret may be missing from the
	// cache.
	account, err := f.Client.CoreV1().ServiceAccounts(namespace).Get(ctx,
		secret.Annotations[corev1.ServiceAccountNameKey],
		metav1.GetOptions{})
	accountUID := secret.Annotations[corev1.ServiceAccountUIDKey]
	switch {
	case apierrors.IsNotFound(err), err == nil && accountUID != "" && accountUID != string(account.UID):
		return 0, f.deleteSecret(ctx, secret)
	case err != nil:
		return 0, fmt.Errorf("get service account of secret %s: %w", key, err)
	case account.DeletionTimestamp != nil:
		return 0, nil // deletion of the account triggers another sync
	}
	return f.ensureData(ctx, account, secret)
}

// deleteSecret deletes the secret of a deleted service account.
func (f *serviceAccountTokenController) deleteSecret(ctx context.Context, secret *corev1.Secret) error {
	err := f.Client.CoreV1().Secrets(secret.Namespace).Delete(ctx, secret.Name, metav1.DeleteOptions{
		Preconditions: &metav1.Preconditions{UID: &secret.UID, ResourceVersion: &secret.ResourceVersion},
	})
	if ignoreNotFound(err) != nil {
		return fmt.Errorf("delete secret %s/%s of deleted service account: %w", secret.Namespace, secret.Name, err)
	}
	f.Log.Info("secret of deleted service account deleted", "secret", secret.Namespace+"/"+secret.Name)
	return nil
}

// ensureData writes the missing or outdated data of the secret and returns when to check it again.
func (f *serviceAccountTokenController) ensureData(ctx context.Context, account *corev1.ServiceAccount,
	secret *corev1.Secret) (time.Duration, error) {
	data := map[string][]byte{corev1.ServiceAccountNamespaceKey: []byte(secret.Namespace)}
	if len(f.CABundle) > 0 {
		data[corev1.ServiceAccountRootCAKey] = f.CABundle
	}
	renewIn := time.Until(f.TokenSigner.RenewAt(string(secret.Data[corev1.ServiceAccountTokenKey]), account, secret))
	if renewIn <= 0 {
		token, err := f.TokenSigner.Sign(account, secret)
		if err != nil {
			return 0, err
		}
		data[corev1.ServiceAccountTokenKey] = []byte(token)
	}
	next := secret.DeepCopy()
	changed := next.Annotations[corev1.ServiceAccountUIDKey] != string(account.UID)
	next.Annotations[corev1.ServiceAccountUIDKey] = string(account.UID)
	if next.Data == nil {
		next.Data = map[string][]byte{}
	}
	for key, value := range data {
		changed = changed || !bytes.Equal(next.Data[key], value)
		next.Data[key] = value
	}
	if !changed || secret.Immutable != nil && *secret.Immutable {
		return min(renewIn, tokenResyncPeriod), nil
	}
	if _, err := f.Client.CoreV1().Secrets(secret.Namespace).Update(ctx, next,
		metav1.UpdateOptions{}); ignoreNotFound(err) != nil {
		return 0, fmt.Errorf("update token secret %s/%s: %w", secret.Namespace, secret.Name, err)
	}
	return 0, nil // the update triggers another sync
}
