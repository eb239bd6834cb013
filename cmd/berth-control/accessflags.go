package main

import (
	"strconv"

	"github.com/spf13/pflag"
	cliflag "k8s.io/component-base/cli/flag"

	"berth/control/authn"
)

// authenticationFlags defines the flags of identities.
func authenticationFlags(f *pflag.FlagSet, o *authn.Options) {
	f.StringVar(&o.ConfigFile, "authentication-config", o.ConfigFile,
		"file of kind AuthenticationConfiguration (apiserver.config.k8s.io) with JWT issuers and the anonymous "+
			"section; changes apply while the server runs; mutually exclusive with --oidc-*")
	f.Var(optionalBool{&o.Anonymous}, "anonymous-auth",
		"allow requests without credentials, as user system:anonymous in group system:unauthenticated; RBAC limits "+
			"them to the version and the health checks (default true)")
	f.Lookup("anonymous-auth").NoOptDefVal = "true"
	oidcFlags(f, &o.OIDC)
	w := &o.Webhook
	f.StringVar(&w.ConfigFile, "authentication-token-webhook-config-file", w.ConfigFile,
		"kubeconfig with the URL of a webhook that reviews bearer tokens")
	f.DurationVar(&w.CacheTTL, "authentication-token-webhook-cache-ttl", w.CacheTTL,
		"how long a response of the token webhook is reused")
	f.StringVar(&w.Version, "authentication-token-webhook-version", w.Version,
		"version of the TokenReview (authentication.k8s.io) that the webhook gets: v1 or v1beta1")
	h := &o.RequestHeader
	f.StringVar(&h.ClientCAFile, "requestheader-client-ca-file", h.ClientCAFile,
		"CA bundle that verifies the client certificate of a front proxy, before the user in its headers is trusted")
	f.StringSliceVar(&h.AllowedNames, "requestheader-allowed-names", h.AllowedNames,
		"common names of the client certificate of the front proxy; if empty, any name is allowed")
	f.StringSliceVar(&h.UsernameHeaders, "requestheader-username-headers", h.UsernameHeaders,
		"headers with the user name, such as X-Remote-User")
	f.StringSliceVar(&h.UIDHeaders, "requestheader-uid-headers", h.UIDHeaders,
		"headers with the UID of the user, such as X-Remote-Uid")
	f.StringSliceVar(&h.GroupHeaders, "requestheader-group-headers", h.GroupHeaders,
		"headers with the groups of the user, such as X-Remote-Group")
	f.StringSliceVar(&h.ExtraHeaderPrefixes, "requestheader-extra-headers-prefix", h.ExtraHeaderPrefixes,
		"prefixes of headers with extra fields of the user, such as X-Remote-Extra-")
}

// oidcFlags defines the flags of a single OpenID Connect issuer.
func oidcFlags(f *pflag.FlagSet, o *authn.OIDCOptions) {
	f.StringVar(&o.IssuerURL, "oidc-issuer-url", o.IssuerURL, "https URL of an OpenID Connect issuer of users' tokens")
	f.StringVar(&o.ClientID, "oidc-client-id", o.ClientID, "audience that tokens of the issuer must have")
	f.StringVar(&o.CAFile, "oidc-ca-file", o.CAFile,
		"CA bundle of the issuer's server (default: the CAs of the host)")
	f.StringVar(&o.UsernameClaim, "oidc-username-claim", o.UsernameClaim, "claim with the user name")
	f.StringVar(&o.UsernamePrefix, "oidc-username-prefix", o.UsernamePrefix,
		"prefix of user names; '-' is none (default: the issuer's URL and '#', unless the claim is email)")
	f.StringVar(&o.GroupsClaim, "oidc-groups-claim", o.GroupsClaim, "claim with the groups of the user")
	f.StringVar(&o.GroupsPrefix, "oidc-groups-prefix", o.GroupsPrefix, "prefix of group names")
	f.StringSliceVar(&o.SigningAlgs, "oidc-signing-algs", o.SigningAlgs, "accepted signature algorithms of tokens")
	f.Var(cliflag.NewMapStringStringNoSplit(&o.RequiredClaims), "oidc-required-claim",
		"claims and their values that a token must have, KEY=VALUE; can be repeated")
}

// optionalBool is a flag value that is nil until the flag is set.
type optionalBool struct{ to **bool }

// String returns the current value.
func (o optionalBool) String() string {
	if o.to == nil || *o.to == nil {
		return ""
	}
	return strconv.FormatBool(**o.to)
}

// Set replaces the value.
func (o optionalBool) Set(text string) error {
	value, err := strconv.ParseBool(text)
	*o.to = &value
	return err
}

// Type returns the placeholder for the help text.
func (optionalBool) Type() string { return "bool" }
