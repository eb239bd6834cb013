package ui

import (
	"crypto/rand"
	"crypto/sha256"
	"net/http"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// LinkLifetime is how long a link can be used.
const LinkLifetime = 5 * time.Minute

// MaxSession is the maximum duration of a session from a link.
const MaxSession = 24 * time.Hour

// maxLinks limits the number of unused links, and maxUserLinks those of one user.
const (
	maxLinks     = 100
	maxUserLinks = 10
)

// linkID is the hash of a code.
type linkID [sha256.Size]byte

// link is a session that has not started yet.
type link struct {
	user    sessionUser
	expires time.Time
}

// LinkRequest requests a link.
type LinkRequest struct {
	Duration metav1.Duration `json:"duration"` // of the session
}

// LinkResponse contains the code of a link.
type LinkResponse struct {
	Code string `json:"code"`
	// Expires is when the code becomes invalid, SessionExpires when its session does.
	Expires        time.Time `json:"expires"`
	SessionExpires time.Time `json:"sessionExpires"`
}

// createLink creates a link for the user of a client certificate. The session ends with the certificate at the latest.
// A bearer token cannot create a link: the session could outlive it.
func (h *handler) createLink(w http.ResponseWriter, r *http.Request) {
	var in LinkRequest
	if err := readJSON(w, r, &in); err != nil {
		writeStatus(w, http.StatusBadRequest, metav1.StatusReasonBadRequest, "invalid request: "+err.Error())
		return
	}
	if in.Duration.Duration <= 0 || in.Duration.Duration > MaxSession {
		writeStatus(w, http.StatusBadRequest, metav1.StatusReasonBadRequest,
			"the duration must be positive and at most "+MaxSession.String())
		return
	}
	for name := range r.Header {
		if strings.HasPrefix(name, "Impersonate-") {
			writeStatus(w, http.StatusBadRequest, metav1.StatusReasonBadRequest,
				"a link cannot be created with impersonation")
			return
		}
	}
	if !hasCertificate(r) {
		writeStatus(w, http.StatusUnauthorized, metav1.StatusReasonUnauthorized,
			"a link requires a client certificate: sign in with your token instead")
		return
	}
	check := r.Clone(r.Context())
	check.Header = http.Header{} // nothing else than the certificate
	info, failure := h.whoAmI(check)
	if failure != nil {
		failure.writeTo(w)
		return
	}
	now := h.Now()
	end := now.Add(in.Duration.Duration)
	if last := r.TLS.PeerCertificates[0].NotAfter; last.Before(end) {
		end = last
	}
	extra := map[string][]string{}
	for k, v := range info.Extra {
		extra[k] = v
	}
	code := rand.Text()
	l := link{sessionUser{info.Username, info.UID, info.Groups, extra, end}, now.Add(LinkLifetime)}
	if !h.addLink(code, l) {
		writeStatus(w, http.StatusTooManyRequests, metav1.StatusReasonTooManyRequests,
			"too many unused links: retry in some minutes")
		return
	}
	h.Log.Info("web page link created", "user", l.user.Name, "client", r.RemoteAddr)
	writeJSON(w, LinkResponse{code, l.expires, end})
}

// addLink stores a link and removes those that have expired. It returns false if there are too many.
func (h *handler) addLink(code string, l link) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	now := h.Now()
	ofUser := 0
	for id, old := range h.links {
		switch {
		case !now.Before(old.expires):
			delete(h.links, id)
		case old.user.Name == l.user.Name:
			ofUser++
		}
	}
	if len(h.links) >= maxLinks || ofUser >= maxUserLinks {
		return false
	}
	h.links[sha256.Sum256([]byte(code))] = l
	return true
}

// takeLink removes and returns a link.
func (h *handler) takeLink(code string) (link, bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	id := linkID(sha256.Sum256([]byte(code)))
	l, ok := h.links[id]
	delete(h.links, id)
	return l, ok && h.Now().Before(l.expires)
}

// redeem starts the session of a link.
func (h *handler) redeem(w http.ResponseWriter, r *http.Request, code string) {
	l, ok := h.takeLink(code)
	if !ok {
		writeStatus(w, http.StatusUnauthorized, metav1.StatusReasonUnauthorized,
			"this link has been used or has expired: run berth-control ui again")
		return
	}
	h.Log.Info("web page link redeemed", "user", l.user.Name, "client", r.RemoteAddr)
	h.start(w, sessionContent{User: &l.user}, session{User: l.user.Name, Groups: l.user.Groups},
		"the user has too many groups for a session: use kubectl proxy")
}
