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

// create asks a storage of reviews.
func create(ctx context.Context, t *testing.T, s rest.Storage, obj runtime.Object) (runtime.Object, error) {
	t.Helper()
	c, ok := s.(rest.Creater)
	if !ok {
		t.Fatalf("%T makes nothing", s)
	}
	return c.Create(ctx, obj, nil, nil)
}

func TestTokenReviews(t *testing.T) {
	t.Parallel()
	s := NewTokenReviews(newWho(newSigner(t, "ours")), authenticator.Audiences{own})
	for _, c := range []struct {
		name, token string
		audiences   []string
		want        string // the user's name; empty: not authenticated
		is          []string
		says        string
	}{
		{name: "for the server itself", token: "account", want: "system:serviceaccount:a:b", is: []string{own}},
		{name: "for the server, by name", token: "account", audiences: []string{own, "other"}, want: "system:serviceaccount:a:b", is: []string{own}},
		{name: "for somebody else", token: "account", audiences: []string{"vault"}, says: "not for these audiences"},
		{name: "of somebody else", token: "elsewhere", audiences: []string{"vault"}, want: "system:serviceaccount:a:c", is: []string{"vault"}},
		{name: "of somebody else, for the server", token: "elsewhere", says: "not for these audiences"},
		{name: "a bootstrap token", token: "bootstrap", want: "system:bootstrap:x", is: []string{own}},
		{name: "a bootstrap token is for the server alone", token: "bootstrap", audiences: []string{"vault"}},
		{name: "unknown", token: "unknown"},
		{name: "forged", token: "forged", says: "the signature is wrong"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			sent := &authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: c.token, Audiences: c.audiences}}
			// Who asks for the review is somebody; that must not make the token good.
			ctx := genericapirequest.WithUser(t.Context(), &user.DefaultInfo{Name: "asker"})
			obj, err := create(ctx, t, s, sent)
			if err != nil {
				t.Fatal(err)
			}
			got := obj.(*authenticationv1.TokenReview).Status
			if got.User.Username != c.want || got.Authenticated != (c.want != "") || !slices.Equal(got.Audiences, c.is) || !strings.Contains(got.Error, c.says) {
				t.Errorf("%+v", got)
			}
			if sent.Status.Authenticated || sent.Status.Error != "" {
				t.Error("what was sent is changed")
			}
		})
	}
}

func TestReviewsThatAreNone(t *testing.T) {
	t.Parallel()
	s := NewTokenReviews(newWho(newSigner(t, "ours")), authenticator.Audiences{own})
	placed := &authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: "account"}}
	placed.Namespace = "a"
	for name, obj := range map[string]runtime.Object{
		"without a token": &authenticationv1.TokenReview{}, "in a namespace": placed, "of another kind": &corev1.Pod{},
	} {
		if got, err := create(t.Context(), t, s, obj); !apierrors.IsBadRequest(err) {
			t.Errorf("%s: %v, %v", name, got, err)
		}
	}
}

func TestSelfSubjectReviews(t *testing.T) {
	t.Parallel()
	s := NewSelfSubjectReviews()
	who := &user.DefaultInfo{Name: "jane", UID: "7", Groups: []string{"developers"}, Extra: map[string][]string{"example.com/from": {"there"}}}
	obj, err := create(genericapirequest.WithUser(t.Context(), who), t, s, &authenticationv1.SelfSubjectReview{})
	if err != nil {
		t.Fatal(err)
	}
	got := obj.(*authenticationv1.SelfSubjectReview).Status.UserInfo
	if got.Username != "jane" || got.UID != "7" || !slices.Equal(got.Groups, who.Groups) || !slices.Equal(got.Extra["example.com/from"], []string{"there"}) {
		t.Errorf("%+v", got)
	}
	if _, err := create(t.Context(), t, s, &authenticationv1.SelfSubjectReview{}); !apierrors.IsBadRequest(err) {
		t.Errorf("nobody is somebody: %v", err)
	}
}
