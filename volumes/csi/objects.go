package csi

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"time"

	authnv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"berth/internal/apiclient"
)

// specAge is how long a CSIDriver object is used before it is read again.
const specAge = 10 * time.Second

// cachedSpec is the CSIDriver object of a driver.
type cachedSpec struct {
	spec *driverSpec // nil: there is none
	at   time.Time
}

// driverSpec returns the CSIDriver object of a driver, or nil if there is none. If the server does not
// respond, the last known object is used.
func (m *Manager) driverSpec(ctx context.Context, name string) (*driverSpec, error) {
	m.mu.Lock()
	c, known := m.specs[name]
	m.mu.Unlock()
	if known && time.Since(c.at) < specAge {
		return c.spec, nil
	}
	c.at = time.Now()
	var o storagev1.CSIDriver
	switch err := m.opt.Client.Get(ctx, apiclient.CSIDrivers, "", name, &o); {
	case err == nil:
		c.spec = &o.Spec
	case apierrors.IsNotFound(err):
		c.spec = nil
	case known && ctx.Err() == nil:
		m.opt.Log.Warn("CSIDriver object not available, using the last known one", "driver", name, "err", err)
		return c.spec, nil
	default:
		return nil, fmt.Errorf("get CSIDriver %s: %w", name, err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.specs[name] = c
	return c.spec, nil
}

// secrets returns the content of a secret for a call. Nil: the call needs none.
func (m *Manager) secrets(ctx context.Context, ref *corev1.SecretReference) (map[string]string, error) {
	if ref == nil {
		return nil, nil
	}
	var s corev1.Secret
	if err := m.opt.Client.Get(ctx, apiclient.Secrets, ref.Namespace, ref.Name, &s); err != nil {
		return nil, prefixed("failed to find the secret %s in the namespace %s with error: %w", ref.Name, ref.Namespace, err)
	}
	out := make(map[string]string, len(s.Data))
	for key, value := range s.Data {
		out[key] = string(value)
	}
	return out, nil
}

// tokens returns the tokens of the pod's service account that a driver requests, as JSON by audience.
// Empty: it requests none.
func (m *Manager) tokens(ctx context.Context, pod *corev1.Pod, spec *driverSpec) (string, error) {
	if spec == nil || len(spec.TokenRequests) == 0 {
		return "", nil
	}
	account := cmp.Or(pod.Spec.ServiceAccountName, "default")
	out := map[string]authnv1.TokenRequestStatus{}
	for _, t := range spec.TokenRequests {
		q := authnv1.TokenRequest{Spec: authnv1.TokenRequestSpec{
			Audiences: []string{}, ExpirationSeconds: t.ExpirationSeconds,
			BoundObjectRef: &authnv1.BoundObjectReference{APIVersion: "v1", Kind: "Pod", Name: pod.Name, UID: pod.UID},
		}}
		if t.Audience != "" {
			q.Spec.Audiences = []string{t.Audience}
		}
		var r authnv1.TokenRequest
		err := m.opt.Client.Create(ctx, apiclient.ServiceAccounts, pod.Namespace, &q, &r, account, "token")
		if err != nil {
			return "", err
		}
		out[t.Audience] = r.Status
	}
	text, err := json.Marshal(out)
	return string(text), err
}
