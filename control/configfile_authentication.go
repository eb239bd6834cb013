package control

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"berth/control/authn"
)

// authFields is the section authentication of a configuration file.
type authFields struct {
	// ConfigFile is a file of kind AuthenticationConfiguration.
	ConfigFile    string              `json:"configFile,omitempty"`
	AnonymousAuth *bool               `json:"anonymousAuth,omitempty"`
	OIDC          oidcFields          `json:"oidc,omitzero"`
	TokenWebhook  tokenWebhookFields  `json:"tokenWebhook,omitzero"`
	RequestHeader requestHeaderFields `json:"requestHeader,omitzero"`
}

type oidcFields struct {
	IssuerURL      *string           `json:"issuerURL,omitempty"`
	ClientID       *string           `json:"clientID,omitempty"`
	CAFile         *string           `json:"caFile,omitempty"`
	UsernameClaim  *string           `json:"usernameClaim,omitempty"`
	UsernamePrefix *string           `json:"usernamePrefix,omitempty"`
	GroupsClaim    *string           `json:"groupsClaim,omitempty"`
	GroupsPrefix   *string           `json:"groupsPrefix,omitempty"`
	SigningAlgs    []string          `json:"signingAlgs,omitempty"`
	RequiredClaims map[string]string `json:"requiredClaims,omitempty"`
}

type tokenWebhookFields struct {
	ConfigFile *string          `json:"configFile,omitempty"`
	CacheTTL   *metav1.Duration `json:"cacheTTL,omitempty"`
	Version    *string          `json:"version,omitempty"`
}

type requestHeaderFields struct {
	ClientCAFile       *string  `json:"clientCAFile,omitempty"`
	AllowedNames       []string `json:"allowedNames,omitempty"`
	UsernameHeaders    []string `json:"usernameHeaders,omitempty"`
	UIDHeaders         []string `json:"uidHeaders,omitempty"`
	GroupHeaders       []string `json:"groupHeaders,omitempty"`
	ExtraHeadersPrefix []string `json:"extraHeadersPrefix,omitempty"`
}

// applyTo copies the settings of the file, except those for which a flag is set.
func (f *authFields) applyTo(o *authn.Options, isSet func(flag string) bool) {
	list := func(flag string, to *[]string, from []string) {
		if from != nil {
			setIfGiven(isSet, flag, to, &from)
		}
	}
	if f.ConfigFile != "" {
		setIfGiven(isSet, "authentication-config", &o.ConfigFile, &f.ConfigFile)
	}
	if f.AnonymousAuth != nil {
		setIfGiven(isSet, "anonymous-auth", &o.Anonymous, &f.AnonymousAuth)
	}
	setIfGiven(isSet, "oidc-issuer-url", &o.OIDC.IssuerURL, f.OIDC.IssuerURL)
	setIfGiven(isSet, "oidc-client-id", &o.OIDC.ClientID, f.OIDC.ClientID)
	setIfGiven(isSet, "oidc-ca-file", &o.OIDC.CAFile, f.OIDC.CAFile)
	setIfGiven(isSet, "oidc-username-claim", &o.OIDC.UsernameClaim, f.OIDC.UsernameClaim)
	setIfGiven(isSet, "oidc-username-prefix", &o.OIDC.UsernamePrefix, f.OIDC.UsernamePrefix)
	setIfGiven(isSet, "oidc-groups-claim", &o.OIDC.GroupsClaim, f.OIDC.GroupsClaim)
	setIfGiven(isSet, "oidc-groups-prefix", &o.OIDC.GroupsPrefix, f.OIDC.GroupsPrefix)
	list("oidc-signing-algs", &o.OIDC.SigningAlgs, f.OIDC.SigningAlgs)
	if f.OIDC.RequiredClaims != nil {
		setIfGiven(isSet, "oidc-required-claim", &o.OIDC.RequiredClaims, &f.OIDC.RequiredClaims)
	}
	w := &f.TokenWebhook
	setIfGiven(isSet, "authentication-token-webhook-config-file", &o.Webhook.ConfigFile, w.ConfigFile)
	if w.CacheTTL != nil {
		setIfGiven(isSet, "authentication-token-webhook-cache-ttl", &o.Webhook.CacheTTL, &w.CacheTTL.Duration)
	}
	setIfGiven(isSet, "authentication-token-webhook-version", &o.Webhook.Version, w.Version)
	h := &f.RequestHeader
	setIfGiven(isSet, "requestheader-client-ca-file", &o.RequestHeader.ClientCAFile, h.ClientCAFile)
	list("requestheader-allowed-names", &o.RequestHeader.AllowedNames, h.AllowedNames)
	list("requestheader-username-headers", &o.RequestHeader.UsernameHeaders, h.UsernameHeaders)
	list("requestheader-uid-headers", &o.RequestHeader.UIDHeaders, h.UIDHeaders)
	list("requestheader-group-headers", &o.RequestHeader.GroupHeaders, h.GroupHeaders)
	list("requestheader-extra-headers-prefix", &o.RequestHeader.ExtraHeaderPrefixes, h.ExtraHeadersPrefix)
}
