package ui

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/url"
	"strings"

	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
)

type sessionUserKey struct{}

// withSessionUser returns a context for requests of a session from a link.
func withSessionUser(ctx context.Context, u user.Info) context.Context {
	return context.WithValue(ctx, sessionUserKey{}, u)
}

// sessionAuthenticator authenticates requests of sessions from links. Only this package can mark them.
type sessionAuthenticator struct{ next authenticator.Request }

// WithSessionUser returns an authenticator that accepts the users of sessions, and otherwise calls next.
func WithSessionUser(next authenticator.Request) authenticator.Request {
	return sessionAuthenticator{next}
}

// AuthenticateRequest implements authenticator.Request.
func (a sessionAuthenticator) AuthenticateRequest(r *http.Request) (*authenticator.Response, bool, error) {
	if u, ok := r.Context().Value(sessionUserKey{}).(user.Info); ok {
		return &authenticator.Response{User: u}, true, nil
	}
	return a.next.AuthenticateRequest(r)
}

// whoAmI requests the user of a request from the API: of its context, its TLS connection and its headers.
func (h *handler) whoAmI(r *http.Request) (*authenticationv1.UserInfo, *recorder) {
	const path = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
	r = r.Clone(r.Context())
	r.Method, r.URL, r.RequestURI = http.MethodPost, &url.URL{Path: path}, path
	const body = `{"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}`
	r.Body, r.ContentLength = io.NopCloser(strings.NewReader(body)), int64(len(body))
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Accept", "application/json")
	r.Header.Del("Accept-Encoding")
	out := &recorder{header: http.Header{}}
	h.API.ServeHTTP(out, r)
	review := &authenticationv1.SelfSubjectReview{}
	if out.code != http.StatusCreated || json.Unmarshal(out.body.Bytes(), review) != nil {
		return nil, out
	}
	info := review.Status.UserInfo
	return &info, nil
}

// recorder is a response in memory.
type recorder struct {
	header http.Header
	code   int
	body   bytes.Buffer
}

// Header implements http.ResponseWriter.
func (r *recorder) Header() http.Header { return r.header }

// WriteHeader implements http.ResponseWriter.
func (r *recorder) WriteHeader(code int) {
	if r.code == 0 {
		r.code = code
	}
}

// Write implements http.ResponseWriter.
func (r *recorder) Write(b []byte) (int, error) {
	r.WriteHeader(http.StatusOK)
	return r.body.Write(b)
}

// writeTo writes a response that is not a success to a client.
func (r *recorder) writeTo(w http.ResponseWriter) {
	status := metav1.Status{}
	code := r.code
	if code < http.StatusBadRequest {
		code = http.StatusInternalServerError
	}
	switch err := json.Unmarshal(r.body.Bytes(), &status); {
	case code == http.StatusUnauthorized:
		status.Reason, status.Message = metav1.StatusReasonUnauthorized, "the server does not accept these credentials"
	case err != nil || status.Message == "":
		status.Reason, status.Message = metav1.StatusReasonUnknown, http.StatusText(code)
	}
	writeStatus(w, code, status.Reason, status.Message)
}

// writeStatus writes an error as the API does.
func writeStatus(w http.ResponseWriter, code int, reason metav1.StatusReason, message string) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(code)
	// An error means that the client is disconnected.
	_ = json.NewEncoder(w).Encode(metav1.Status{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Status: metav1.StatusFailure,
		Code: int32(code), Reason: reason, Message: message, //nolint:gosec // a status code of HTTP
	})
}

func writeJSON(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	_ = json.NewEncoder(w).Encode(v) // see writeStatus
}

// maxBody is the maximum size of a request to sign in.
const maxBody = 16 << 10

func readJSON(w http.ResponseWriter, r *http.Request, to any) error {
	return json.NewDecoder(http.MaxBytesReader(w, r.Body, maxBody)).Decode(to)
}
