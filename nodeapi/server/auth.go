package server

import (
	"context"
	"crypto/sha256"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
)

// Reviews are the reviews of the API server. With a nil function, tokens are rejected or nothing is
// authorized.
type Reviews struct {
	Token         func(context.Context, authenticationv1.TokenReviewSpec) (authenticationv1.TokenReviewStatus, error)
	SubjectAccess func(
		context.Context, authorizationv1.SubjectAccessReviewSpec,
	) (authorizationv1.SubjectAccessReviewStatus, error)
}

// auth authenticates and authorizes requests.
type auth struct {
	node    string
	clients *DynamicCA
	reviews Reviews
	mode    AuthorizationMode
	tokens  *reviewCache[[sha256.Size]byte, authenticationv1.TokenReviewStatus]
	access  *reviewCache[string, authorizationv1.SubjectAccessReviewStatus]
	log     *slog.Logger

	tokenTTL, allowedTTL, deniedTTL time.Duration
}

func newAuth(o Options) *auth {
	asking := make(chan struct{}, maxReviews)
	return &auth{
		node: o.NodeName, clients: o.ClientCA, reviews: o.Reviews, mode: o.AuthorizationMode, log: o.Log,
		tokens:   newReviewCache[[sha256.Size]byte, authenticationv1.TokenReviewStatus](asking),
		access:   newReviewCache[string, authorizationv1.SubjectAccessReviewStatus](asking),
		tokenTTL: o.TokenTTL, allowedTTL: o.AuthorizedTTL, deniedTTL: o.UnauthorizedTTL,
	}
}

// require calls next for requests that are authenticated and have the permission.
func (d *auth) require(need permission, next http.HandlerFunc) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		u, err := d.authenticate(r)
		switch {
		case errors.Is(err, errUnauthenticated):
			http.Error(w, "Unauthorized", http.StatusUnauthorized)
			return
		case err != nil:
			d.log.Warn("token review failed", "err", err)
			http.Error(w, "Unauthorized", http.StatusUnauthorized)
			return
		}
		what := fmt.Sprintf(
			"user=%s, verb=%s, resource=nodes, subresource(s)=%v",
			u.name,
			need.verb(r.Method),
			need.subresources,
		)
		ok, err := d.authorize(r.Context(), u, need, r.Method)
		switch {
		case ok:
			r.Header.Del("Authorization") // not needed by the handlers
			next(w, r)
		case err != nil:
			d.log.Warn("subject access review failed", "user", u.name, "err", err)
			http.Error(w, "Authorization error ("+what+")", http.StatusInternalServerError)
		default:
			http.Error(w, "Forbidden ("+what+")", http.StatusForbidden)
		}
	})
}

// errUnauthenticated is returned for a request without valid credentials.
var errUnauthenticated = errors.New("unauthenticated")

// authenticate returns the user of a request, by its client certificate or else by its token.
func (d *auth) authenticate(r *http.Request) (user, error) {
	if d.clients != nil && r.TLS != nil && len(r.TLS.PeerCertificates) > 0 {
		u, err := d.byCertificate(r.TLS.PeerCertificates)
		if err == nil {
			return u, nil
		}
		d.log.Debug("client certificate rejected", "remoteAddr", r.RemoteAddr, "err", err)
	}
	kind, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	if token = strings.TrimSpace(token); token == "" || !strings.EqualFold(kind, "Bearer") || d.reviews.Token == nil {
		return user{}, errUnauthenticated
	}
	return d.byToken(r.Context(), token)
}

func (d *auth) byCertificate(chain []*x509.Certificate) (user, error) {
	roots, err := d.clients.pool()
	if err != nil {
		return user{}, err
	}
	between := x509.NewCertPool()
	for _, c := range chain[1:] {
		between.AddCert(c)
	}
	_, err = chain[0].Verify(x509.VerifyOptions{
		Roots: roots, Intermediates: between, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	})
	if err != nil {
		return user{}, err
	}
	name := chain[0].Subject.CommonName
	if name == "" {
		return user{}, errors.New("certificate has no common name")
	}
	return user{name: name, groups: append(slices.Clone(chain[0].Subject.Organization), "system:authenticated")}, nil
}

func (d *auth) byToken(ctx context.Context, token string) (user, error) {
	st, err := d.tokens.get(
		ctx,
		sha256.Sum256([]byte(token)),
		func(ctx context.Context) (authenticationv1.TokenReviewStatus, time.Duration, error) {
			st, err := d.reviews.Token(ctx, authenticationv1.TokenReviewSpec{Token: token})
			if err != nil {
				return st, 0, fmt.Errorf("token review: %w", err)
			}
			return st, d.tokenTTL, nil
		},
	)
	if err != nil {
		return user{}, err
	}
	if !st.Authenticated || st.User.Username == "" {
		return user{}, errUnauthenticated
	}
	u := user{name: st.User.Username, uid: st.User.UID, groups: st.User.Groups}
	if len(st.User.Extra) > 0 {
		u.extra = make(map[string]authorizationv1.ExtraValue, len(st.User.Extra))
		for k, v := range st.User.Extra {
			u.extra[k] = authorizationv1.ExtraValue(v)
		}
	}
	return u, nil
}

// authorize reports whether the user has one of the required permissions.
func (d *auth) authorize(ctx context.Context, u user, need permission, method string) (bool, error) {
	switch d.mode {
	case ModeAlwaysAllow:
		return true, nil
	case ModeMastersOnly:
		return u.in(masters), nil
	case ModeWebhook:
	}
	if d.reviews.SubjectAccess == nil {
		return false, errors.New("no API server for subject access reviews")
	}
	for _, q := range need.reviewSpecs(d.node, method, u) {
		st, err := d.access.get(ctx, q.ResourceAttributes.Verb+"\x00"+q.ResourceAttributes.Subresource+"\x00"+u.key(),
			func(ctx context.Context) (authorizationv1.SubjectAccessReviewStatus, time.Duration, error) {
				st, err := d.reviews.SubjectAccess(ctx, q)
				if err != nil {
					return st, 0, fmt.Errorf("subject access review: %w", err)
				}
				ttl := d.deniedTTL
				if st.Allowed {
					ttl = d.allowedTTL
				}
				return st, ttl, nil
			})
		if err != nil {
			return false, err
		}
		if st.Allowed && !st.Denied {
			return true, nil
		}
	}
	return false, nil
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
