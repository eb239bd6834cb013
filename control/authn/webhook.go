package authn

import (
	"fmt"
	"strings"

	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/authenticatorfactory"
	"k8s.io/apiserver/pkg/authentication/request/headerrequest"
	"k8s.io/apiserver/pkg/authentication/token/cache"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"
	"k8s.io/apiserver/pkg/util/webhook"
	webhooktoken "k8s.io/apiserver/plugin/pkg/authenticator/token/webhook"
)

// Sources are the sources of identities that an administrator configures.
type Sources struct {
	Issuers *Issuers
	// Webhook authenticates tokens. Nil: none.
	Webhook authenticator.Token
	// RequestHeader is the front proxy. Nil: none.
	RequestHeader *authenticatorfactory.RequestHeaderConfig
}

// Open reads the files of the options. The caller must close Issuers.
func (o *Options) Open(c IssuersConfig) (s Sources, err error) {
	if s.RequestHeader, err = o.RequestHeader.Config(); err != nil {
		return s, err
	}
	if s.Webhook, err = o.Webhook.Authenticator(c.Audiences); err != nil {
		return s, err
	}
	s.Issuers, err = OpenIssuers(o, c)
	return s, err
}

// Authenticator returns an authenticator that sends tokens to the webhook, or nil without a webhook. audiences are
// those of the API server: a webhook that does not name audiences accepts tokens for these.
func (o *WebhookOptions) Authenticator(audiences authenticator.Audiences) (authenticator.Token, error) {
	if o.ConfigFile == "" {
		return nil, nil
	}
	config, err := webhook.LoadKubeconfig(o.ConfigFile, nil)
	if err != nil {
		return nil, fmt.Errorf("authentication-token-webhook-config-file: %w", err)
	}
	reviewer, err := webhooktoken.New(config, o.Version, audiences, *webhooktoken.DefaultRetryBackoff())
	if err != nil {
		return nil, fmt.Errorf("authentication-token-webhook-config-file: %w", err)
	}
	return cache.New(reviewer, false, o.CacheTTL, o.CacheTTL), nil
}

// Config returns the configuration of the API server library, or nil without a front proxy. The file is read again
// when it changes, while the server serves requests.
func (o *RequestHeaderOptions) Config() (*authenticatorfactory.RequestHeaderConfig, error) {
	if o.ClientCAFile == "" {
		return nil, nil
	}
	ca, err := dynamiccertificates.NewDynamicCAContentFromFile("request-header", o.ClientCAFile)
	if err != nil {
		return nil, fmt.Errorf("requestheader-client-ca-file: %w", err)
	}
	return &authenticatorfactory.RequestHeaderConfig{
		CAContentProvider: ca, AllowedClientNames: headerrequest.StaticStringSlice(o.AllowedNames),
		UsernameHeaders: trimmed(o.UsernameHeaders), UIDHeaders: trimmed(o.UIDHeaders),
		GroupHeaders: trimmed(o.GroupHeaders), ExtraHeaderPrefixes: trimmed(o.ExtraHeaderPrefixes),
	}, nil
}

func trimmed(headers []string) headerrequest.StaticStringSlice {
	out := make(headerrequest.StaticStringSlice, 0, len(headers))
	for _, header := range headers {
		out = append(out, strings.TrimSpace(header))
	}
	return out
}

// frontProxyAuthenticator returns the user in the headers of a request whose client certificate is that of the proxy.
func frontProxyAuthenticator(c *authenticatorfactory.RequestHeaderConfig) authenticator.Request {
	return headerrequest.NewDynamicVerifyOptionsSecure(c.CAContentProvider.VerifyOptions, c.AllowedClientNames,
		c.UsernameHeaders, c.UIDHeaders, c.GroupHeaders, c.ExtraHeaderPrefixes)
}
