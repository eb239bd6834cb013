package controllers

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	defaultAccount    = "default"
	rootCAName        = "kube-root-ca.crt"
	rootCAKey         = "ca.crt"
	rootCADescription = "kubernetes.io/description"
)

// newServiceAccountController creates the default service account in every namespace.
func newServiceAccountController(c Config) ([]*controller, error) {
	accounts, namespaces := c.Informers.Core().V1().ServiceAccounts(), c.Informers.Core().V1().Namespaces()
	ctrl := c.newController(func(ctx context.Context, name string) (time.Duration, error) {
		ns, err := namespaces.Lister().Get(name)
		if err != nil || ns.DeletionTimestamp != nil {
			return 0, ignoreNotFound(err)
		}
		if _, err := accounts.Lister().ServiceAccounts(name).Get(defaultAccount); err == nil {
			return 0, nil
		}
		_, err = c.Client.CoreV1().ServiceAccounts(name).Create(ctx, &corev1.ServiceAccount{
			ObjectMeta: metav1.ObjectMeta{Namespace: name, Name: defaultAccount},
		}, metav1.CreateOptions{})
		if err != nil && !ignorableCreateError(err) {
			return 0, fmt.Errorf("create service account %s/%s: %w", name, defaultAccount, err)
		}
		return 0, nil
	})
	if err := ctrl.watch(namespaces.Informer(), objectKey); err != nil {
		return nil, err
	}
	return []*controller{ctrl}, ctrl.watch(accounts.Informer(), namespaceKey)
}

// ignorableCreateError reports that the object already exists or that its namespace is terminating
// or gone.
func ignorableCreateError(err error) bool {
	return apierrors.IsAlreadyExists(err) || apierrors.IsNotFound(err) || apierrors.HasStatusCause(err,
		corev1.NamespaceTerminatingCause)
}

// newRootCAController maintains the ConfigMap kube-root-ca.crt in every namespace. Pods mount it to
// verify the API server.
func newRootCAController(c Config) ([]*controller, error) {
	if len(c.CABundle) == 0 {
		return nil, nil
	}
	configMaps, namespaces := c.Informers.Core().V1().ConfigMaps(), c.Informers.Core().V1().Namespaces()
	ctrl := c.newController(func(ctx context.Context, name string) (time.Duration, error) {
		ns, err := namespaces.Lister().Get(name)
		if err != nil || ns.DeletionTimestamp != nil {
			return 0, ignoreNotFound(err)
		}
		want := map[string]string{rootCAKey: string(c.CABundle)}
		have, err := configMaps.Lister().ConfigMaps(name).Get(rootCAName)
		switch {
		case apierrors.IsNotFound(err):
			_, err = c.Client.CoreV1().ConfigMaps(name).Create(ctx, &corev1.ConfigMap{
				ObjectMeta: metav1.ObjectMeta{Namespace: name, Name: rootCAName, Annotations: map[string]string{
					rootCADescription: "Contains a CA bundle that can be used to verify the kube-apiserver when " +
						"using internal " +
						"endpoints such as the internal service IP or kubernetes.default.svc. No other usage is " +
						"guaranteed across " +
						"distributions of Kubernetes clusters.",
				}},
				Data: want,
			}, metav1.CreateOptions{})
		case err == nil && (len(have.Data) != 1 || have.Data[rootCAKey] != want[rootCAKey]):
			next := have.DeepCopy()
			next.Data = want
			_, err = c.Client.CoreV1().ConfigMaps(name).Update(ctx, next, metav1.UpdateOptions{})
		}
		if err != nil && !ignorableCreateError(err) {
			return 0, fmt.Errorf("publish CA bundle in namespace %s: %w", name, err)
		}
		return 0, nil
	})
	if err := ctrl.watch(namespaces.Informer(), objectKey); err != nil {
		return nil, err
	}
	return []*controller{ctrl}, ctrl.watch(configMaps.Informer(), func(obj any) []string {
		if cm, ok := obj.(*corev1.ConfigMap); ok && cm.Name == rootCAName {
			return []string{cm.Namespace}
		}
		return nil
	})
}
