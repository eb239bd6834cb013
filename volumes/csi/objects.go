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
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"berth/internal/apiclient"
)

// specAge is how long a CSIDriver object is used before it is read again.
const specAge = 10 * time.Second

// knownSpecTimeout limits how long a known CSIDriver object is read again.
const knownSpecTimeout = 3 * time.Second

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
	read, cancel := ctx, context.CancelFunc(func() {})
	if known {
		read, cancel = context.WithTimeout(ctx, knownSpecTimeout)
	}
	defer cancel()
	now := cachedSpec{at: time.Now()}
	var o storagev1.CSIDriver
	switch err := m.opt.Client.Get(read, apiclient.CSIDrivers, "", name, &o); {
	case err == nil:
		now.spec = &o.Spec
	case apierrors.IsNotFound(err):
	case known && ctx.Err() == nil:
		m.opt.Log.Warn("CSIDriver object not available, using the last known one", "driver", name, "err", err)
		now.spec = c.spec
	default:
		return nil, fmt.Errorf("get CSIDriver %s: %w", name, err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.specs[name] = now
	if !known || !equality.Semantic.DeepEqual(c.spec, now.spec) {
		m.saveSpecs()
	}
	return now.spec, nil
}

// saveSpecs saves the CSIDriver objects. The caller holds mu.
func (m *Manager) saveSpecs() {
	specs := make(map[string]*driverSpec, len(m.specs))
	for name, c := range m.specs {
		specs[name] = c.spec
	}
	text, err := json.Marshal(specs)
	if err != nil {
		m.opt.Log.Warn("CSIDriver objects not saved", "err", err)
		return
	}
	m.opt.Save(text)
}

// restoreSpecs restores the saved CSIDriver objects. They are used only if the server does not respond.
func (m *Manager) restoreSpecs() error {
	if len(m.opt.Saved) == 0 {
		return nil
	}
	specs := map[string]*driverSpec{}
	if err := json.Unmarshal(m.opt.Saved, &specs); err != nil {
		return err
	}
	for name, spec := range specs {
		m.specs[name] = cachedSpec{spec: spec}
	}
	return nil
}

// secrets returns the content of a secret for a call. Nil: the call needs none.
func (m *Manager) secrets(ctx context.Context, ref *corev1.SecretReference) (map[string]string, error) {
	if ref == nil {
		return nil, nil
	}
	var s corev1.Secret
	if err := m.opt.Client.Get(ctx, apiclient.Secrets, ref.Namespace, ref.Name, &s); err != nil {
		return nil, prefixed("failed to find the secret %s in the namespace %s with error: %w", ref.Name,
			ref.Namespace, err)
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
