package authn

import (
	"context"
	"net/http"

	authenticationv1 "k8s.io/api/authentication/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/registry/rest"

	"berth/control/reviews"
)

// NewTokenReviews returns the storage of tokenreviews. The token is checked by the request
// authenticator with a request that contains only the token, so that reviews and requests always
// agree. audiences apply to a review without any.
func NewTokenReviews(requests authenticator.Request, audiences authenticator.Audiences) rest.Storage {
	return &reviews.Storage[*authenticationv1.TokenReview]{
		Kind: "TokenReview", NewObject: func() *authenticationv1.TokenReview { return &authenticationv1.TokenReview{} },
		Evaluate: func(ctx context.Context, review *authenticationv1.TokenReview) error {
			if review.Namespace != "" {
				return apierrors.NewBadRequest("namespace is not allowed on this type")
			}
			if review.Spec.Token == "" {
				return apierrors.NewBadRequest("token is required for TokenReview in authentication")
			}
			review.Status = tokenReviewStatus(ctx, requests, review.Spec, audiences)
			return nil
		},
	}
}

func tokenReviewStatus(ctx context.Context, requests authenticator.Request, spec authenticationv1.TokenReviewSpec,
	own authenticator.Audiences) (s authenticationv1.TokenReviewStatus) {
	audiences := authenticator.Audiences(spec.Audiences)
	if len(audiences) == 0 {
		audiences = own
	}
	ctx = authenticator.WithAudiences(context.WithoutCancel(ctx), audiences)
	req := (&http.Request{Header: http.Header{}}).WithContext(ctx)
	req.Header.Set("Authorization", "Bearer "+spec.Token)
	got, ok, err := requests.AuthenticateRequest(req)
	switch {
	case err != nil:
		s.Error = err.Error()
		return s
	case !ok || got == nil || got.User == nil:
		return s
	case len(got.Audiences) > 0 && len(audiences.Intersect(got.Audiences)) == 0:
		s.Error = "the token is not valid for the requested audiences"
		return s
	}
	s.Authenticated, s.User, s.Audiences = true, userInfo(got.User), got.Audiences
	return s
}

// NewSelfSubjectReviews returns the storage of selfsubjectreviews ("kubectl auth whoami").
func NewSelfSubjectReviews() rest.Storage {
	return &reviews.Storage[*authenticationv1.SelfSubjectReview]{
		Kind: "SelfSubjectReview", NewObject: func() *authenticationv1.SelfSubjectReview {
			return &authenticationv1.SelfSubjectReview{}
		},
		Evaluate: func(ctx context.Context, review *authenticationv1.SelfSubjectReview) error {
			u, err := reviews.RequestUser(ctx)
			if err == nil {
				review.Status.UserInfo = userInfo(u)
			}
			return err
		},
	}
}

func userInfo(u user.Info) authenticationv1.UserInfo {
	out := authenticationv1.UserInfo{Username: u.GetName(), UID: u.GetUID(), Groups: u.GetGroups()}
	for k, v := range u.GetExtra() {
		if out.Extra == nil {
			out.Extra = map[string]authenticationv1.ExtraValue{}
		}
		out.Extra[k] = v
	}
	return out
}
