package imagepull_test

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"berth/agent/plan"
	"berth/images"
)

// newImages returns a Manager that is closed at the end of the test.
func newImages(t *testing.T, o images.Options) *images.Manager {
	t.Helper()
	i := images.New(o)
	t.Cleanup(i.Close)
	return i
}

func newPod(name string, priority int32, pullSecrets ...string) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name}}
	p.Spec.Priority = &priority
	for _, s := range pullSecrets {
		p.Spec.ImagePullSecrets = append(p.Spec.ImagePullSecrets, corev1.LocalObjectReference{Name: s})
	}
	return p
}

func pullAction(image string) plan.PullImage { return plan.PullImage{Container: "c", Image: image} }

// startPull pulls in the background. The channel receives the result.
func startPull(ctx context.Context, i *images.Manager, pod *corev1.Pod, image string,
	secrets plan.Objects) <-chan error {
	result := make(chan error, 1)
	go func() {
		_, err := i.Pull(ctx, pod, pullAction(image), secrets)
		result <- err
	}()
	return result
}

func secretRef(name string) plan.Ref { return plan.Ref{Kind: plan.Secret, Name: name} }

// dockerConfig returns a pull secret with a user for each registry or path.
func dockerConfig(users map[string]string) plan.Object {
	auths := map[string]any{}
	for at, user := range users {
		auths[at] = map[string]string{"auth": base64.StdEncoding.EncodeToString([]byte(user + ":password-of-" + user))}
	}
	raw, err := json.Marshal(map[string]any{"auths": auths})
	if err != nil {
		panic(err)
	}
	return plan.Object{Secret: &corev1.Secret{
		Type: corev1.SecretTypeDockerConfigJson, Data: map[string][]byte{corev1.DockerConfigJsonKey: raw},
	}}
}

// waitFor waits until ok is true and fails the test after 30 s.
func waitFor(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(2 * time.Minute); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("timeout: %s", what)
		}
	}
}

// checkError checks the kind and the reason of an error.
func checkError(t *testing.T, err error, kind plan.ErrorKind, reason string) {
	t.Helper()
	e, ok := err.(*plan.Error) //nolint:errorlint // the outermost error carries the kind
	if !ok {
		t.Fatalf("%v is not a *plan.Error", err)
	}
	if e.Kind != kind || e.Reason != reason {
		t.Errorf("got kind %d, reason %s, want %d, %s: %v", e.Kind, e.Reason, kind, reason, err)
	}
}
