package ui

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"
)

const cookieName = "berth-ui"

// maxCookie is the maximum size of the cookie's value in bytes. Browsers drop cookies of more than 4096 bytes.
const maxCookie = 4000

// bearerToken matches what RFC 6750 allows.
var bearerToken = regexp.MustCompile(`^[A-Za-z0-9\-._~+/]+=*$`)

// sessionUser is the user of a session from a link.
type sessionUser struct {
	Name    string              `json:"name"`
	UID     string              `json:"uid,omitempty"`
	Groups  []string            `json:"groups,omitempty"`
	Extra   map[string][]string `json:"extra,omitempty"`
	Expires time.Time           `json:"expires"`
}

func (u *sessionUser) info() user.Info {
	return &user.DefaultInfo{Name: u.Name, UID: u.UID, Groups: u.Groups, Extra: u.Extra}
}

// sessionContent is the encrypted content of the cookie. It has either a token or a user.
type sessionContent struct {
	Token string       `json:"token,omitempty"`
	User  *sessionUser `json:"user,omitempty"`
	// Secret is the hash of the secret that the page has to send. Servers on other ports of this host receive the
	// cookie too, but not the secret.
	Secret []byte `json:"secret"`
}

var base64url = base64.RawURLEncoding.Strict()

// newCipher returns the cipher of cookies. It generates its nonces.
func newCipher(key []byte) (cipher.AEAD, error) {
	derived, err := hkdf.Key(sha256.New, key, nil, "berth-control: cookies of the user interface", 32)
	if err != nil {
		return nil, fmt.Errorf("key of cookies: %w", err)
	}
	block, err := aes.NewCipher(derived)
	if err != nil {
		return nil, fmt.Errorf("cipher of cookies: %w", err)
	}
	return cipher.NewGCMWithRandomNonce(block)
}

var errTooLong = errors.New("the content is too long for a cookie")

// seal returns the value of a cookie, and the secret that requests with this cookie have to send.
func (h *handler) seal(c sessionContent) (value, secret string, _ error) {
	secret = rand.Text()
	hash := sha256.Sum256([]byte(secret))
	c.Secret = hash[:]
	text, err := json.Marshal(c)
	if err != nil {
		return "", "", err
	}
	value = base64url.EncodeToString(h.cookies.Seal(nil, nil, text, []byte(cookieName)))
	if len(value) > maxCookie {
		return "", "", errTooLong
	}
	return value, secret, nil
}

// unseal returns the content of a cookie, or nil if it is not valid, has expired, or belongs to another secret.
func (h *handler) unseal(value, secret string) *sessionContent {
	sealed, err := base64url.DecodeString(value)
	if err != nil {
		return nil
	}
	text, err := h.cookies.Open(nil, nil, sealed, []byte(cookieName))
	c := &sessionContent{}
	if err != nil || json.Unmarshal(text, c) != nil {
		return nil
	}
	hash := sha256.Sum256([]byte(secret))
	if subtle.ConstantTimeCompare(hash[:], c.Secret) != 1 || (c.User == nil) == (c.Token == "") ||
		c.User != nil && !h.Now().Before(c.User.Expires) {
		return nil
	}
	return c
}

// hasToken reports whether a request has a bearer token of its own. The API ignores other schemes.
func hasToken(r *http.Request) bool {
	scheme, _, ok := strings.Cut(strings.TrimSpace(r.Header.Get("Authorization")), " ")
	return ok && strings.EqualFold(scheme, "Bearer")
}

func hasCertificate(r *http.Request) bool { return r.TLS != nil && len(r.TLS.PeerCertificates) > 0 }

// removeCredentials removes all credentials from a copy of a request.
func removeCredentials(r *http.Request) {
	r.Header.Del("Cookie")
	r.Header.Del("Authorization")
	if r.TLS != nil {
		state := *r.TLS
		state.PeerCertificates, state.VerifiedChains = nil, nil
		r.TLS = &state
	}
}

const signInFirst = "you are not signed in, or the session has expired"

// withCredentials returns a copy of a request without cookies, and with the credentials of its session if it uses one.
// A bearer token of the request has priority over the session, and the session over a client certificate: browsers may
// present a certificate that the API rejects. A sign-in fails while the API accepts the certificate. If there are no
// credentials it returns a problem for the user.
func (h *handler) withCredentials(r *http.Request) (_ *http.Request, _ *sessionContent, problem string) {
	cookie, err := r.Cookie(cookieName)
	secret := r.Header.Get(Header)
	r = r.Clone(r.Context())
	r.Header.Del("Cookie")
	r.Header.Del(Header)
	if hasToken(r) {
		return r, nil, ""
	}
	if err == nil {
		if c := h.unseal(cookie.Value, secret); c != nil {
			removeCredentials(r)
			if c.User != nil {
				return r.WithContext(withSessionUser(r.Context(), c.User.info())), c, ""
			}
			r.Header.Set("Authorization", "Bearer "+c.Token)
			return r, c, ""
		}
	}
	if hasCertificate(r) {
		return r, nil, ""
	}
	return nil, nil, signInFirst
}

// session describes a session to the page.
type session struct {
	User    string     `json:"user"`
	Groups  []string   `json:"groups,omitempty"`
	Expires *time.Time `json:"expires,omitempty"` // nil: not known
	// SignOut is false if the credentials are those of the connection, for example of kubectl proxy.
	SignOut bool `json:"signOut"`
	// Secret is the value for Header. Only the response to a sign-in contains it.
	Secret string `json:"secret,omitempty"`
}

// getSession returns the session of a request.
func (h *handler) getSession(w http.ResponseWriter, r *http.Request) {
	authenticated, content, problem := h.withCredentials(r)
	if problem != "" {
		writeStatus(w, http.StatusUnauthorized, metav1.StatusReasonUnauthorized, problem)
		return
	}
	info, failure := h.whoAmI(authenticated)
	if failure != nil {
		failure.writeTo(w)
		return
	}
	out := session{User: info.Username, Groups: info.Groups, SignOut: content != nil}
	if content != nil {
		out.Expires = content.expiry()
	}
	writeJSON(w, out)
}

// expiry returns when a session ends, or nil. The API verifies tokens; this is for the page.
func (c *sessionContent) expiry() *time.Time {
	if c.User != nil {
		return &c.User.Expires
	}
	parts := strings.Split(c.Token, ".")
	if len(parts) != 3 {
		return nil
	}
	var claims struct {
		Exp float64 `json:"exp"`
	}
	text, err := base64url.DecodeString(parts[1])
	if err != nil || json.Unmarshal(text, &claims) != nil || claims.Exp <= 0 {
		return nil
	}
	at := time.Unix(int64(claims.Exp), 0)
	return &at
}

// createSession signs a user in with a token or with the code of a link, and sets the cookie.
func (h *handler) createSession(w http.ResponseWriter, r *http.Request) {
	var in struct{ Token, Code string }
	if err := readJSON(w, r, &in); err != nil {
		writeStatus(w, http.StatusBadRequest, metav1.StatusReasonBadRequest, "invalid request: "+err.Error())
		return
	}
	if hasToken(r) || hasCertificate(r) {
		own := r.Clone(r.Context())
		own.Header.Del("Cookie")
		if info, failure := h.whoAmI(own); failure == nil {
			writeStatus(w, http.StatusConflict, metav1.StatusReasonConflict,
				"the connection already has the credentials of "+info.Username+": you cannot sign in")
			return
		}
	}
	if in.Code != "" {
		h.redeem(w, r, in.Code)
		return
	}
	token := strings.TrimSpace(in.Token)
	if !bearerToken.MatchString(token) {
		writeStatus(w, http.StatusBadRequest, metav1.StatusReasonBadRequest, "this is not a token")
		return
	}
	check := r.Clone(r.Context())
	check.TLS = nil
	check.Header = http.Header{"Authorization": {"Bearer " + token}}
	info, failure := h.whoAmI(check)
	if failure != nil {
		failure.writeTo(w)
		return
	}
	h.start(w, sessionContent{Token: token}, session{User: info.Username, Groups: info.Groups},
		"the token is too long for a session: use kubectl proxy")
}

// start sets the cookie of a session and responds with its description. If it does not fit into a cookie, the response
// is an error with the message tooLong.
func (h *handler) start(w http.ResponseWriter, c sessionContent, out session, tooLong string) {
	value, secret, err := h.seal(c)
	switch {
	case errors.Is(err, errTooLong):
		writeStatus(w, http.StatusBadRequest, metav1.StatusReasonBadRequest, tooLong)
		return
	case err != nil:
		writeStatus(w, http.StatusInternalServerError, metav1.StatusReasonInternalError, "create session: "+err.Error())
		return
	}
	out.Expires, out.SignOut, out.Secret = c.expiry(), true, secret
	// Without a path, a browser sends the cookie to the directory of this response, /ui, with the prefix by which a
	// proxy serves it.
	http.SetCookie(w, &http.Cookie{Name: cookieName, Value: value, HttpOnly: true, Secure: true,
		SameSite: http.SameSiteStrictMode, MaxAge: h.maxAge(out.Expires)})
	writeJSON(w, out)
}

// maxAge returns the seconds until a session ends; 0: until the browser ends.
func (h *handler) maxAge(end *time.Time) int {
	if end == nil {
		return 0
	}
	return max(int(end.Sub(h.Now()).Seconds()), 1)
}

func (h *handler) deleteSession(w http.ResponseWriter) {
	http.SetCookie(w, &http.Cookie{Name: cookieName, HttpOnly: true, Secure: true,
		SameSite: http.SameSiteStrictMode, MaxAge: -1})
	w.WriteHeader(http.StatusNoContent)
}
