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

// tokenResyncPeriod is how often a token is looked at that need not be renewed yet.
const tokenResyncPeriod = 24 * time.Hour

// TokenSigner signs what secrets of type kubernetes.io/service-account-token hold.
type TokenSigner interface {
	Sign(account *corev1.ServiceAccount, secret *corev1.Secret) (token string, err error)
	// RenewAt is when a token has to be signed anew; the zero time: it is no good.
	RenewAt(token string, account *corev1.ServiceAccount, secret *corev1.Secret) time.Time
}

// serviceAccountTokenController fills the secrets that ask for a token of a service account, and
// deletes them with the account.
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
	w := c.newController(f.sync)
	if err := w.watch(secrets.Informer(), func(obj any) []string {
		if s, ok := obj.(*corev1.Secret); ok && s.Type == corev1.SecretTypeServiceAccountToken {
			return objectKey(s)
		}
		return nil
	}); err != nil {
		return nil, err
	}
	return []*controller{w}, w.watch(accounts.Informer(), func(obj any) (keys []string) {
		account, ok := obj.(*corev1.ServiceAccount)
		if !ok {
			return nil
		}
		all, err := f.secrets.Secrets(account.Namespace).List(labels.Everything())
		if err != nil {
			return nil // a lister of what is in memory has no errors
		}
		for _, s := range all {
			if s.Type == corev1.SecretTypeServiceAccountToken && s.Annotations[corev1.ServiceAccountNameKey] == account.Name {
				keys = append(keys, objectKey(s)...)
			}
		}
		return keys
	})
}

func (f *serviceAccountTokenController) sync(ctx context.Context, key string) (time.Duration, error) {
	namespace, name, err := cache.SplitMetaNamespaceKey(key)
	if err != nil {
		return 0, nil //nolint:nilerr // no key of ours
	}
	secret, err := f.secrets.Secrets(namespace).Get(name)
	if err != nil || secret.Type != corev1.SecretTypeServiceAccountToken || secret.DeletionTimestamp != nil {
		return 0, ignoreNotFound(err)
	}
	// As it is stored now: one that was made with its secret may not be in the cache yet.
	account, err := f.Client.CoreV1().ServiceAccounts(namespace).Get(ctx, secret.Annotations[corev1.ServiceAccountNameKey], metav1.GetOptions{})
	was := secret.Annotations[corev1.ServiceAccountUIDKey]
	switch {
	case apierrors.IsNotFound(err), err == nil && was != "" && was != string(account.UID):
		return 0, f.deleteSecret(ctx, secret)
	case err != nil:
		return 0, fmt.Errorf("account of secret %s: %w", key, err)
	case account.DeletionTimestamp != nil:
		return 0, nil // told again when it is gone
	}
	return f.ensureData(ctx, account, secret)
}

// deleteSecret deletes the secret of an account that is gone.
func (f *serviceAccountTokenController) deleteSecret(ctx context.Context, secret *corev1.Secret) error {
	err := f.Client.CoreV1().Secrets(secret.Namespace).Delete(ctx, secret.Name, metav1.DeleteOptions{
		Preconditions: &metav1.Preconditions{UID: &secret.UID, ResourceVersion: &secret.ResourceVersion},
	})
	if ignoreNotFound(err) != nil {
		return fmt.Errorf("delete secret %s/%s of an account that is gone: %w", secret.Namespace, secret.Name, err)
	}
	f.Log.Info("the secret of a service account that is gone is deleted", "secret", secret.Namespace+"/"+secret.Name)
	return nil
}

// ensureData writes what is missing, and answers when to look again.
func (f *serviceAccountTokenController) ensureData(ctx context.Context, account *corev1.ServiceAccount, secret *corev1.Secret) (time.Duration, error) {
	want := map[string][]byte{corev1.ServiceAccountNamespaceKey: []byte(secret.Namespace)}
	if len(f.CABundle) > 0 {
		want[corev1.ServiceAccountRootCAKey] = f.CABundle
	}
	left := time.Until(f.TokenSigner.RenewAt(string(secret.Data[corev1.ServiceAccountTokenKey]), account, secret))
	if left <= 0 {
		token, err := f.TokenSigner.Sign(account, secret)
		if err != nil {
			return 0, err
		}
		want[corev1.ServiceAccountTokenKey] = []byte(token)
	}
	next := secret.DeepCopy()
	changed := next.Annotations[corev1.ServiceAccountUIDKey] != string(account.UID)
	next.Annotations[corev1.ServiceAccountUIDKey] = string(account.UID)
	if next.Data == nil {
		next.Data = map[string][]byte{}
	}
	for key, value := range want {
		changed = changed || !bytes.Equal(next.Data[key], value)
		next.Data[key] = value
	}
	if !changed || secret.Immutable != nil && *secret.Immutable {
		return min(left, tokenResyncPeriod), nil
	}
	if _, err := f.Client.CoreV1().Secrets(secret.Namespace).Update(ctx, next, metav1.UpdateOptions{}); ignoreNotFound(err) != nil {
		return 0, fmt.Errorf("write the token of secret %s/%s: %w", secret.Namespace, secret.Name, err)
	}
	return 0, nil // told of the change
}
