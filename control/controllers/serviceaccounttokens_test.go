package controllers

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// hourlySigner signs tokens that are valid for an hour.
type hourlySigner struct{}

func (hourlySigner) Sign(_ *corev1.ServiceAccount, s *corev1.Secret) (string, error) {
	return string(s.UID) + " " + time.Now().Add(time.Hour).Format(time.RFC3339), nil
}

func (hourlySigner) RenewAt(token string, _ *corev1.ServiceAccount, s *corev1.Secret) time.Time {
	at, err := time.Parse(time.RFC3339, token[min(len(token), len(s.UID)+1):])
	if err != nil {
		return time.Time{}
	}
	return at
}

// TestServiceAccountTokenControllerFillsAndRenewsSecret also checks that the secret is deleted with
// its account.
func TestServiceAccountTokenControllerFillsAndRenewsSecret(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "app",
			UID: "app-1"}}
		newSecret := func(name, of string, annotations ...string) *corev1.Secret {
			s := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: "s-1",
				Annotations: map[string]string{corev1.ServiceAccountNameKey: of}},
				Type: corev1.SecretTypeServiceAccountToken}
			if len(annotations) > 0 {
				s.Annotations[corev1.ServiceAccountUIDKey] = annotations[0]
			}
			return s
		}
		other := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "other",
			Annotations: map[string]string{corev1.ServiceAccountNameKey: "none"}}}
		client := startControllers(t, Config{TokenSigner: hourlySigner{}, CABundle: []byte("the CA")},
			[]string{ServiceAccountTokens},
			account, newSecret("token", "app"), newSecret("unknown", "none"), newSecret("former", "app", "app-0"),
			other)
		names := func() (out []string) {
			t.Helper()
			synctest.Wait()
			all, err := client.CoreV1().Secrets("default").List(t.Context(), metav1.ListOptions{})
			if err != nil {
				t.Fatal(err)
			}
			for i := range all.Items {
				out = append(out, all.Items[i].Name)
			}
			return out
		}
		time.Sleep(time.Second)
		if got := names(); !slices.Equal(got, []string{"other", "token"}) {
			t.Errorf("got %v", got)
		}
		read := func() *corev1.Secret {
			t.Helper()
			s, err := client.CoreV1().Secrets("default").Get(t.Context(), "token", metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			return s
		}
		s := read()
		first := string(s.Data["token"])
		if first == "" || string(s.Data["ca.crt"]) != "the CA" || string(s.Data["namespace"]) != "default" ||
			s.Annotations[corev1.ServiceAccountUIDKey] != "app-1" {
			t.Errorf("got secret data %s, annotations %v", s.Data, s.Annotations)
		}
		time.Sleep(50 * time.Minute)
		synctest.Wait()
		if got := string(read().Data["token"]); got != first {
			t.Errorf("token renewed too early: %s", got)
		}
		time.Sleep(11 * time.Minute)
		synctest.Wait()
		if got := string(read().Data["token"]); got == first {
			t.Error("token not renewed")
		}
		if err := client.CoreV1().ServiceAccounts("default").Delete(t.Context(), "app",
			metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		if got := names(); !slices.Equal(got, []string{"other"}) {
			t.Errorf("after deletion of the account, got secrets %v", got)
		}
		if _, err := client.CoreV1().Secrets("default").Get(t.Context(), "token",
			metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			t.Error(err)
		}
	})
}
