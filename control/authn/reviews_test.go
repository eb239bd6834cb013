package authn

import (
	"context"
	"slices"
	"strings"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
)

// create sends a review to the storage.
func create(ctx context.Context, t *testing.T, s rest.Storage, obj runtime.Object) (runtime.Object, error) {
	t.Helper()
	c, ok := s.(rest.Creater)
	if !ok {
		t.Fatalf("%T is not a rest.Creater", s)
	}
	return c.Create(ctx, obj, nil, nil)
}

func TestTokenReviews(t *testing.T) {
	t.Parallel()
	s := NewTokenReviews(newTestAuthenticator(newTestCA(t, "ours")), authenticator.Audiences{serverAudience})
	for _, c := range []struct {
		name, token string
		audiences   []string
		want        string // user name; empty: not authenticated
		is          []string
		wantErr     string
	}{
		{name: "default audience", token: "account", want: "system:serviceaccount:a:b", is: []string{serverAudience}},
		{name: "explicit server audience", token: "account", audiences: []string{serverAudience, "other"},
			want: "system:serviceaccount:a:b", is: []string{serverAudience}},
		{name: "server token for another audience", token: "account", audiences: []string{"vault"},
			wantErr: "not valid for the requested audiences"},
		{name: "token of another audience", token: "elsewhere", audiences: []string{"vault"},
			want: "system:serviceaccount:a:c", is: []string{"vault"}},
		{name: "token of another audience for the server", token: "elsewhere",
			wantErr: "not valid for the requested audiences"},
		{name: "a bootstrap token", token: "bootstrap", want: "system:bootstrap:x", is: []string{serverAudience}},
		{name: "bootstrap token for another audience", token: "bootstrap", audiences: []string{"vault"}},
		{name: "unknown token", token: "unknown"},
		{name: "forged token", token: "forged", wantErr: "invalid signature"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			sent := &authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: c.token,
				Audiences: c.audiences}}
			// The request has a user, which must not make the token valid.
			ctx := genericapirequest.WithUser(t.Context(), &user.DefaultInfo{Name: "requester"})
			obj, err := create(ctx, t, s, sent)
			if err != nil {
				t.Fatal(err)
			}
			got := obj.(*authenticationv1.TokenReview).Status
			if got.User.Username != c.want || got.Authenticated != (c.want != "") ||
				!slices.Equal(got.Audiences, c.is) ||
				!strings.Contains(got.Error, c.wantErr) {
				t.Errorf("got %+v", got)
			}
			if sent.Status.Authenticated || sent.Status.Error != "" {
				t.Error("the sent object was modified")
			}
		})
	}
}

func TestInvalidTokenReviews(t *testing.T) {
	t.Parallel()
	s := NewTokenReviews(newTestAuthenticator(newTestCA(t, "ours")), authenticator.Audiences{serverAudience})
	placed := &authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: "account"}}
	placed.Namespace = "a"
	for name, obj := range map[string]runtime.Object{
		"without a token": &authenticationv1.TokenReview{}, "in a namespace": placed, "of another kind": &corev1.Pod{},
	} {
		if got, err := create(t.Context(), t, s, obj); !apierrors.IsBadRequest(err) {
			t.Errorf("%s: got %v, %v", name, got, err)
		}
	}
}

func TestSelfSubjectReviews(t *testing.T) {
	t.Parallel()
	s := NewSelfSubjectReviews()
	u := &user.DefaultInfo{Name: "jane", UID: "7", Groups: []string{"developers"}, Extra: map[string][]string{
		"example.com/from": {"there"}}}
	obj, err := create(genericapirequest.WithUser(t.Context(), u), t, s, &authenticationv1.SelfSubjectReview{})
	if err != nil {
		t.Fatal(err)
	}
	got := obj.(*authenticationv1.SelfSubjectReview).Status.UserInfo
	if got.Username != "jane" || got.UID != "7" || !slices.Equal(got.Groups, u.Groups) ||
		!slices.Equal(got.Extra["example.com/from"], []string{"there"}) {
		t.Errorf("got %+v", got)
	}
	if _, err := create(t.Context(), t, s, &authenticationv1.SelfSubjectReview{}); !apierrors.IsBadRequest(err) {
		t.Errorf("request without user: %v", err)
	}
}
