package authn

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apiserver/pkg/apis/apiserver"
	"k8s.io/apiserver/pkg/apis/apiserver/install"
	"k8s.io/apiserver/pkg/apis/apiserver/validation"
	authenticationcel "k8s.io/apiserver/pkg/authentication/cel"
)

// configurationCodecs decode AuthenticationConfigurations. Unknown fields are errors.
func configurationCodecs() serializer.CodecFactory {
	scheme := runtime.NewScheme()
	install.Install(scheme)
	return serializer.NewCodecFactory(scheme, serializer.EnableStrict)
}

// ReadConfiguration reads a file of kind AuthenticationConfiguration. The error names the file and the field.
func ReadConfiguration(path string) (*apiserver.AuthenticationConfiguration, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("authentication-config: %w", err)
	}
	c, err := parseConfiguration(text, nil, false)
	if err != nil {
		return nil, fmt.Errorf("authentication-config: %s: %w", path, err)
	}
	return c, nil
}

// parseConfiguration decodes and validates an AuthenticationConfiguration. Errors name the field. disallowedIssuers
// are those of the server's own tokens. anonymousFlag reports whether --anonymous-auth is set.
func parseConfiguration(text []byte, disallowedIssuers []string, anonymousFlag bool) (
	*apiserver.AuthenticationConfiguration, error) {
	if len(text) == 0 {
		return nil, errors.New("empty config data")
	}
	decoded, err := runtime.Decode(configurationCodecs().UniversalDecoder(), text)
	if err != nil {
		return nil, err
	}
	c, ok := decoded.(*apiserver.AuthenticationConfiguration)
	if !ok {
		return nil, fmt.Errorf("expected AuthenticationConfiguration, got %T", decoded)
	}
	if c.Anonymous != nil && anonymousFlag {
		return nil, errors.New("anonymous: --anonymous-auth flag cannot be set when anonymous field is configured " +
			"in authentication configuration file")
	}
	return c, validateConfiguration(c, disallowedIssuers)
}

func validateConfiguration(c *apiserver.AuthenticationConfiguration, disallowedIssuers []string) error {
	compiler := authenticationcel.NewDefaultCompiler()
	return validation.ValidateAuthenticationConfiguration(compiler, c, disallowedIssuers).ToAggregate()
}

// configuration returns the options as an AuthenticationConfiguration.
func (o *OIDCOptions) configuration() (*apiserver.AuthenticationConfiguration, error) {
	prefix := o.UsernamePrefix
	switch {
	case prefix == "" && o.UsernameClaim != "email":
		prefix = o.IssuerURL + "#" // upstream's default
	case prefix == "-":
		prefix = ""
	}
	jwt := apiserver.JWTAuthenticator{
		Issuer: apiserver.Issuer{URL: o.IssuerURL, Audiences: []string{o.ClientID}},
		ClaimMappings: apiserver.ClaimMappings{
			Username: apiserver.PrefixedClaimOrExpression{Claim: o.UsernameClaim, Prefix: &prefix},
		},
	}
	if o.GroupsClaim != "" {
		jwt.ClaimMappings.Groups = apiserver.PrefixedClaimOrExpression{Claim: o.GroupsClaim, Prefix: &o.GroupsPrefix}
	}
	if o.CAFile != "" {
		pem, err := os.ReadFile(o.CAFile)
		if err != nil {
			return nil, fmt.Errorf("oidc-ca-file: %w", err)
		}
		jwt.Issuer.CertificateAuthority = string(pem)
	}
	for _, claim := range slices.Sorted(maps.Keys(o.RequiredClaims)) {
		jwt.ClaimValidationRules = append(jwt.ClaimValidationRules,
			apiserver.ClaimValidationRule{Claim: claim, RequiredValue: o.RequiredClaims[claim]})
	}
	return &apiserver.AuthenticationConfiguration{JWT: []apiserver.JWTAuthenticator{jwt}}, nil
}
