package ui

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"net/http"
	"regexp"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"
)

// The cookie and its two kinds of values.
const (
	cookieName   = "berth-ui"
	tokenSession = "token:"
	userSession  = "user:"
)

// maxToken is the maximum size of a token in bytes. Browsers drop cookies of more than 4096 bytes.
const maxToken = 3800

// bearerToken matches what RFC 6750 allows. All these characters are valid in a cookie.
var bearerToken = regexp.MustCompile(`^[A-Za-z0-9\-._~+/]+=*$`)

// signedUser is the content of a session that this server has signed.
type signedUser struct {
	Name    string              `json:"name"`
	UID     string              `json:"uid,omitempty"`
	Groups  []string            `json:"groups,omitempty"`
	Extra   map[string][]string `json:"extra,omitempty"`
	Expires time.Time           `json:"expires"`
}

func (u *signedUser) info() user.Info {
	return &user.DefaultInfo{Name: u.Name, UID: u.UID, Groups: u.Groups, Extra: u.Extra}
}

var base64url = base64.RawURLEncoding.Strict()

// sign returns the value of a cookie.
func (h *handler) sign(u *signedUser) (string, error) {
	content, err := json.Marshal(u)
	if err != nil {
		return "", err
	}
	return userSession + base64url.EncodeToString(content) + "." + base64url.EncodeToString(h.mac(content)), nil
}

// verify returns the user of a signed session, or nil if it is not valid or has expired.
func (h *handler) verify(value string) *signedUser {
	content, mac, _ := strings.Cut(value, ".")
	text, err1 := base64url.DecodeString(content)
	sum, err2 := base64url.DecodeString(mac)
	u := &signedUser{}
	if errors.Join(err1, err2) != nil || !hmac.Equal(sum, h.mac(text)) || json.Unmarshal(text, u) != nil ||
		!h.Now().Before(u.Expires) {
		return nil
	}
	return u
}

func (h *handler) mac(content []byte) []byte {
	m := hmac.New(sha256.New, h.Key)
	m.Write(content)
	return m.Sum(nil)
}

// hasOwnCredentials reports whether a request is authenticated without a session.
func hasOwnCredentials(r *http.Request) bool {
	return r.Header.Get("Authorization") != "" || r.TLS != nil && len(r.TLS.PeerCertificates) > 0
}

const signInFirst = "you are not signed in, or the session has expired"

// withCredentials returns a copy of a request without cookies and with the credentials of the session. If there are
// none it returns a problem for the user.
func (h *handler) withCredentials(r *http.Request) (_ *http.Request, problem string) {
	cookie, err := r.Cookie(cookieName)
	r = r.Clone(r.Context())
	r.Header.Del("Cookie")
	if hasOwnCredentials(r) {
		return r, ""
	}
	if err != nil {
		return nil, signInFirst
	}
	if token, ok := strings.CutPrefix(cookie.Value, tokenSession); ok {
		r.Header.Set("Authorization", "Bearer "+token)
		return r, ""
	}
	value, ok := strings.CutPrefix(cookie.Value, userSession)
	if u := h.verify(value); ok && u != nil {
		return r.WithContext(withSessionUser(r.Context(), u.info())), ""
	}
	return nil, signInFirst
}

// session describes a session to the page.
type session struct {
	User    string     `json:"user"`
	Groups  []string   `json:"groups,omitempty"`
	Expires *time.Time `json:"expires,omitempty"` // nil: not known
	// SignOut is false if the credentials are those of the connection, for example of kubectl proxy.
	SignOut bool `json:"signOut"`
}

// getSession returns the session of a request.
func (h *handler) getSession(w http.ResponseWriter, r *http.Request) {
	authenticated, problem := h.withCredentials(r)
	if problem != "" {
		writeStatus(w, http.StatusUnauthorized, metav1.StatusReasonUnauthorized, problem)
		return
	}
	info, failure := h.whoAmI(authenticated)
	if failure != nil {
		failure.writeTo(w)
		return
	}
	out := session{User: info.Username, Groups: info.Groups, SignOut: !hasOwnCredentials(r)}
	if cookie, err := r.Cookie(cookieName); err == nil && out.SignOut {
		out.Expires = h.expiry(cookie.Value)
	}
	writeJSON(w, out)
}

// expiry returns when a session ends, or nil. The API verifies tokens; this is for the page.
func (h *handler) expiry(value string) *time.Time {
	if signed, ok := strings.CutPrefix(value, userSession); ok {
		if u := h.verify(signed); u != nil {
			return &u.Expires
		}
		return nil
	}
	parts := strings.Split(strings.TrimPrefix(value, tokenSession), ".")
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
	if in.Code != "" {
		h.redeem(w, in.Code)
		return
	}
	token := strings.TrimSpace(in.Token)
	if !bearerToken.MatchString(token) {
		writeStatus(w, http.StatusBadRequest, metav1.StatusReasonBadRequest, "this is not a token")
		return
	}
	if len(token) > maxToken {
		writeStatus(w, http.StatusBadRequest, metav1.StatusReasonBadRequest,
			"the token is too long for a session: use kubectl proxy")
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
	value := tokenSession + token
	h.setCookie(w, value)
	writeJSON(w, session{User: info.Username, Groups: info.Groups, Expires: h.expiry(value), SignOut: true})
}

// setCookie sets the cookie of a session. Without a path, a browser sends it to the directory of this response, /ui,
// with the prefix by which a proxy serves it.
func (h *handler) setCookie(w http.ResponseWriter, value string) {
	http.SetCookie(w, &http.Cookie{Name: cookieName, Value: value, HttpOnly: true, Secure: true,
		SameSite: http.SameSiteStrictMode, MaxAge: h.maxAge(value)})
}

// maxAge returns the remaining seconds of a session; 0: until the browser ends.
func (h *handler) maxAge(value string) int {
	at := h.expiry(value)
	if at == nil {
		return 0
	}
	return max(int(at.Sub(h.Now()).Seconds()), 1)
}

func (h *handler) deleteSession(w http.ResponseWriter) {
	http.SetCookie(w, &http.Cookie{Name: cookieName, HttpOnly: true, Secure: true,
		SameSite: http.SameSiteStrictMode, MaxAge: -1})
	w.WriteHeader(http.StatusNoContent)
}
