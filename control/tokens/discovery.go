package tokens

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strings"
)

// Paths of OIDC discovery, as in kube-apiserver.
const (
	ConfigurationPath = "/.well-known/openid-configuration"
	KeySetPath        = "/openid/v1/jwks"
)

// Discovery serves the OIDC configuration of the issuer and its public keys, with which other
// parties can verify tokens.
type Discovery struct {
	Configuration []byte // JSON, OpenID Provider Metadata
	KeySet        []byte // JSON Web Key Set
}

// NewDiscovery creates both documents. issuer is an https URL without query and fragment. The key
// set is served by the issuer's host unless keySetURI is set.
func NewDiscovery(issuer, keySetURI string, keys *Keyring) (*Discovery, error) {
	u, err := url.Parse(issuer)
	if err != nil || u.Scheme != "https" || u.RawQuery != "" || u.Fragment != "" {
		return nil, fmt.Errorf("service account issuer %q: must be an https URL without query and fragment", issuer)
	}
	if keySetURI == "" {
		keySetURI = strings.TrimSuffix(issuer, "/") + KeySetPath
	} else if u, err := url.Parse(keySetURI); err != nil {
		return nil, fmt.Errorf("service-account-jwks-uri: %w", err)
	} else if u.Scheme != "https" {
		return nil, fmt.Errorf("service-account-jwks-uri requires https scheme, parsed as: %s", u)
	}
	set, err := keys.webKeys()
	if err != nil {
		return nil, err
	}
	algorithms := []string{}
	for _, k := range set {
		algorithms = append(algorithms, k.Alg)
	}
	d := &Discovery{}
	if d.Configuration, err = json.Marshal(map[string]any{
		"issuer": issuer, "jwks_uri": keySetURI, "response_types_supported": []string{"id_token"},
		"subject_types_supported": []string{"public"}, "id_token_signing_alg_values_supported": deduplicate(algorithms),
	}); err != nil {
		return nil, err
	}
	d.KeySet, err = json.Marshal(map[string]any{"keys": set})
	return d, err
}

// Install adds both paths to a mux.
func (d *Discovery) Install(mux interface {
	Handle(path string, h http.Handler)
},
) {
	mux.Handle(ConfigurationPath, document("application/json", d.Configuration))
	mux.Handle(KeySetPath, document("application/jwk-set+json", d.KeySet))
}

func document(kind string, body []byte) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if req.Method != http.MethodGet && req.Method != http.MethodHead {
			w.Header().Set("Allow", "GET, HEAD")
			http.Error(w, "only GET is supported", http.StatusMethodNotAllowed)
			return
		}
		w.Header().Set("Content-Type", kind)
		w.Header().Set("Cache-Control", "public, max-age=3600")
		_, _ = w.Write(body) // the client may have disconnected
	})
}

func deduplicate(in []string) (out []string) {
	seen := map[string]bool{}
	for _, s := range in {
		if !seen[s] {
			seen[s], out = true, append(out, s)
		}
	}
	return out
}
