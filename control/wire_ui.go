package control

import (
	"crypto/hkdf"
	"crypto/sha256"
	"crypto/x509"
	"fmt"
	"net/http"

	"k8s.io/apiserver/pkg/authentication/authenticator"

	"berth/control/pki"
	"berth/control/ui"
)

// withUI serves the web page below /ui/ in front of the API, if it is enabled.
func (s *Server) withUI(api http.Handler) http.Handler {
	if !s.UI {
		return api
	}
	return ui.New(ui.Options{API: api, Key: s.access.sessionKey, Log: s.Log})
}

// requestAuthenticator returns the authenticator of the API, with the sessions of the web page if it is enabled.
func (s *Server) requestAuthenticator() authenticator.Request {
	if !s.UI {
		return s.access.authenticator
	}
	return ui.WithSessionUser(s.access.authenticator)
}

// sessionKey derives the secret of sessions of the web page from the key of service account tokens, so that
// sessions stay valid until that key is rotated and the server restarted.
func sessionKey(from *pki.SigningKey) ([]byte, error) {
	secret, err := x509.MarshalPKCS8PrivateKey(from)
	if err != nil {
		return nil, fmt.Errorf("session key: %w", err)
	}
	key, err := hkdf.Key(sha256.New, secret, nil, "berth-control: sessions of the user interface", sha256.Size)
	if err != nil {
		return nil, fmt.Errorf("session key: %w", err)
	}
	return key, nil
}
