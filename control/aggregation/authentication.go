package aggregation

import (
	"context"
	"crypto"
	"encoding/json"
	"fmt"
	"maps"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/util/cert"
)

// AuthenticationConfigMap is the name of the ConfigMap in kube-system from which extension API servers read how to
// authenticate clients and the front proxy.
const AuthenticationConfigMap = "extension-apiserver-authentication"

// Keys of the certificate authorities in the ConfigMap.
const (
	clientCAKey        = "client-ca-file"
	requestHeaderCAKey = "requestheader-client-ca-file"
)

// Authentication is what the ConfigMap publishes.
type Authentication struct {
	ClientCA, FrontProxyCA []byte // PEM
	// FrontProxyName is the common name of the front proxy's certificate.
	FrontProxyName string
	// Shared is set if other servers publish their authorities in the same ConfigMap. These are kept.
	Shared bool
}

// Publish creates or updates the ConfigMap.
func (a Authentication) Publish(ctx context.Context, client kubernetes.Interface) error {
	configs := client.CoreV1().ConfigMaps(metav1.NamespaceSystem)
	current, err := configs.Get(ctx, AuthenticationConfigMap, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return a.create(ctx, client)
	}
	if err != nil {
		return fmt.Errorf("ConfigMap %s: %w", AuthenticationConfigMap, err)
	}
	data, err := a.data(current.Data)
	if err != nil {
		return err
	}
	merged := maps.Clone(current.Data)
	if merged == nil {
		merged = map[string]string{}
	}
	if maps.Copy(merged, data); maps.Equal(merged, current.Data) {
		return nil
	}
	current.Data = merged
	if _, err := configs.Update(ctx, current, metav1.UpdateOptions{}); err != nil {
		return fmt.Errorf("update ConfigMap %s: %w", AuthenticationConfigMap, err)
	}
	return nil
}

// create creates the ConfigMap, and its namespace if it does not exist yet.
func (a Authentication) create(ctx context.Context, client kubernetes.Interface) error {
	data, err := a.data(nil)
	if err != nil {
		return err
	}
	if _, err := client.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{
		ObjectMeta: metav1.ObjectMeta{Name: metav1.NamespaceSystem}},
		metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("create namespace %s: %w", metav1.NamespaceSystem, err)
	}
	if _, err := client.CoreV1().ConfigMaps(metav1.NamespaceSystem).Create(ctx, &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: AuthenticationConfigMap, Namespace: metav1.NamespaceSystem}, Data: data,
	}, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("create ConfigMap %s: %w", AuthenticationConfigMap, err)
	}
	return nil
}

// data returns the content of the ConfigMap.
func (a Authentication) data(current map[string]string) (map[string]string, error) {
	out := map[string]string{
		clientCAKey:        a.authorities(current[clientCAKey], a.ClientCA),
		requestHeaderCAKey: a.authorities(current[requestHeaderCAKey], a.FrontProxyCA),
	}
	for key, value := range map[string]string{
		"requestheader-allowed-names":        a.FrontProxyName,
		"requestheader-username-headers":     "X-Remote-User",
		"requestheader-uid-headers":          "X-Remote-Uid",
		"requestheader-group-headers":        "X-Remote-Group",
		"requestheader-extra-headers-prefix": "X-Remote-Extra-",
	} {
		text, err := json.Marshal([]string{value})
		if err != nil {
			return nil, err
		}
		out[key] = string(text)
	}
	return out, nil
}

// authorities returns the certificates to publish. Servers that share a key have different certificates of it, and one
// of them is enough.
func (a Authentication) authorities(current string, own []byte) string {
	if !a.Shared {
		return string(own)
	}
	published, err := cert.ParseCertsPEM([]byte(current))
	if err != nil {
		return string(own)
	}
	wanted, err := cert.ParseCertsPEM(own)
	if err != nil {
		return current
	}
	for _, one := range wanted {
		found := false
		for _, have := range published {
			key, ok := have.PublicKey.(interface {
				Equal(other crypto.PublicKey) bool
			})
			found = found || ok && key.Equal(one.PublicKey) && !have.NotAfter.Before(one.NotAfter)
		}
		if !found {
			return current + string(own)
		}
	}
	return current
}
