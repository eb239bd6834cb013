package authn

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/coreos/go-oidc"
)

// Options selects the sources of identities that an administrator configures. The names in errors are those of the
// flags, which are the flags of kube-apiserver.
type Options struct {
	// ConfigFile is a file of kind AuthenticationConfiguration. It is mutually exclusive with OIDC.
	ConfigFile string
	OIDC       OIDCOptions
	Webhook    WebhookOptions
	// RequestHeader configures a front proxy that authenticates users.
	RequestHeader RequestHeaderOptions
	// Anonymous allows requests without credentials, as user system:anonymous. Nil is true, or the section anonymous
	// of ConfigFile.
	Anonymous *bool
}

// OIDCOptions configure a single OpenID Connect issuer.
type OIDCOptions struct {
	IssuerURL, ClientID, CAFile, UsernameClaim, UsernamePrefix, GroupsClaim, GroupsPrefix string
	// SigningAlgs are the accepted signature algorithms.
	SigningAlgs []string
	// RequiredClaims are the values of claims that a token must have.
	RequiredClaims map[string]string
}

// WebhookOptions configure a webhook that reviews tokens.
type WebhookOptions struct {
	// ConfigFile is a kubeconfig with the URL of the webhook. If empty, there is no webhook.
	ConfigFile string
	// CacheTTL is how long a response is reused.
	CacheTTL time.Duration
	// Version is the version of the TokenReview: v1 or v1beta1.
	Version string
}

// RequestHeaderOptions configure a front proxy that sends the user in headers.
type RequestHeaderOptions struct {
	// ClientCAFile verifies the client certificate of the proxy. If empty, the headers are ignored.
	ClientCAFile string
	// AllowedNames are the accepted common names of the certificate. Empty: all.
	AllowedNames []string
	// Headers with the user, and prefixes of headers with extra fields.
	UsernameHeaders, UIDHeaders, GroupHeaders, ExtraHeaderPrefixes []string
}

// DefaultOptions returns upstream's defaults.
func DefaultOptions() Options {
	return Options{
		OIDC:    OIDCOptions{UsernameClaim: "sub", SigningAlgs: []string{oidc.RS256}},
		Webhook: WebhookOptions{CacheTTL: 2 * time.Minute, Version: "v1beta1"},
	}
}

// Validate checks the options without reading files. The error names the flag.
func (o *Options) Validate() error {
	switch {
	case o.ConfigFile != "" && o.OIDC.configured():
		return errors.New("authentication-config file and oidc-* flags are mutually exclusive")
	case o.OIDC.configured() && (o.OIDC.IssuerURL == "" || o.OIDC.ClientID == ""):
		return errors.New("oidc-issuer-url and oidc-client-id must be specified together when any oidc-* flags are set")
	case o.OIDC.configured() && o.OIDC.UsernameClaim == "":
		return errors.New("oidc-username-claim: required")
	}
	if w := o.Webhook; w.ConfigFile != "" {
		if w.Version != "v1" && w.Version != "v1beta1" {
			return fmt.Errorf("authentication-token-webhook-version: %q: must be v1 or v1beta1", w.Version)
		}
		if w.CacheTTL < 0 {
			return fmt.Errorf("authentication-token-webhook-cache-ttl: %s: must not be negative", w.CacheTTL)
		}
	}
	return o.RequestHeader.validate()
}

// configured reports whether an option differs from its default.
func (o *OIDCOptions) configured() bool {
	d := DefaultOptions().OIDC
	return o.IssuerURL != "" || o.ClientID != "" || o.CAFile != "" || o.UsernameClaim != d.UsernameClaim ||
		o.UsernamePrefix != "" || o.GroupsClaim != "" || o.GroupsPrefix != "" ||
		!slices.Equal(o.SigningAlgs, d.SigningAlgs) || len(o.RequiredClaims) > 0
}

func (o *RequestHeaderOptions) validate() error {
	for _, list := range []struct {
		flag     string
		values   []string
		standard string // the header of API aggregation
	}{
		{"requestheader-username-headers", o.UsernameHeaders, ""},
		{"requestheader-group-headers", o.GroupHeaders, ""},
		{"requestheader-extra-headers-prefix", o.ExtraHeaderPrefixes, ""},
		{"requestheader-allowed-names", o.AllowedNames, ""},
		{"requestheader-uid-headers", o.UIDHeaders, "X-Remote-Uid"},
	} {
		for _, value := range list.values {
			if strings.TrimSpace(value) == "" {
				return fmt.Errorf("empty value in %q", list.flag)
			}
		}
		isStandard := func(value string) bool { return strings.EqualFold(value, list.standard) }
		if list.standard != "" && len(list.values) > 0 && !slices.ContainsFunc(list.values, isStandard) {
			return fmt.Errorf("--%s is set without specifying the standard %s header - API aggregation will not work",
				list.flag, list.standard)
		}
	}
	return nil
}

// Warnings returns settings that work differently from what upstream's documentation recommends.
func (o *RequestHeaderOptions) Warnings() (warnings []string) {
	for _, list := range []struct {
		flag, standard string
		values         []string
	}{
		{"username-headers", "X-Remote-User header", o.UsernameHeaders},
		{"group-headers", "X-Remote-Group header", o.GroupHeaders},
		{"extra-headers-prefix", "X-Remote-Extra- header prefix", o.ExtraHeaderPrefixes},
	} {
		name, _, _ := strings.Cut(list.standard, " ")
		isStandard := func(value string) bool { return strings.EqualFold(value, name) }
		if len(list.values) > 0 && !slices.ContainsFunc(list.values, isStandard) {
			warnings = append(warnings, fmt.Sprintf("--requestheader-%s is set without specifying the standard %s - "+
				"API aggregation will not work", list.flag, list.standard))
		}
	}
	switch {
	case o.ClientCAFile != "" && len(o.UsernameHeaders) == 0:
		warnings = append(warnings, "--requestheader-client-ca-file has no effect without "+
			"--requestheader-username-headers")
	case o.ClientCAFile == "" && len(slices.Concat(o.AllowedNames, o.UsernameHeaders, o.UIDHeaders, o.GroupHeaders,
		o.ExtraHeaderPrefixes)) > 0:
		warnings = append(warnings, "--requestheader-* flags have no effect without --requestheader-client-ca-file")
	}
	return warnings
}
