package authn

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apiserver/pkg/apis/apiserver"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	authenticationcel "k8s.io/apiserver/pkg/authentication/cel"
	"k8s.io/apiserver/pkg/authentication/request/anonymous"
	tokenunion "k8s.io/apiserver/pkg/authentication/token/union"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"
	configmetrics "k8s.io/apiserver/pkg/server/options/authenticationconfig/metrics"
	"k8s.io/apiserver/pkg/util/filesystem"
	"k8s.io/apiserver/plugin/pkg/authenticator/token/oidc"
)

const (
	// reloadPollInterval is how often the file is compared if it cannot be watched.
	reloadPollInterval = time.Minute
	// issuersTimeout limits how long new issuers may take to respond after a reload. The former ones stay until then.
	issuersTimeout = time.Minute
	// issuersPollInterval is how often the state of new issuers is checked.
	issuersPollInterval = 100 * time.Millisecond
	// formerIssuersPeriod is how long former issuers finish their requests after a reload.
	formerIssuersPeriod = time.Minute
)

// Issuers authenticates the JWTs of the issuers in an AuthenticationConfiguration and decides which requests can be
// anonymous. It is safe for concurrent use.
type Issuers struct {
	file              string // empty: from flags
	audiences         authenticator.Audiences
	disallowedIssuers []string
	signingAlgs       []string
	anonymousFlag     *bool
	serverID          string
	log               *slog.Logger

	lifetime context.Context //nolint:containedctx // of the requests to issuers; ended by Close
	end      context.CancelFunc
	retired  sync.WaitGroup // former issuers whose requests finish
	current  atomic.Pointer[issuerSet]
	text     string // of the current configuration
}

// issuerSet holds the authenticators of one configuration.
type issuerSet struct {
	tokens    authenticator.Token   // nil: no issuer
	anonymous authenticator.Request // nil: no anonymous requests
	health    []func() error
	end       context.CancelFunc
}

// IssuersConfig holds what Issuers needs besides options.
type IssuersConfig struct {
	// Audiences are those of the API server. ServiceAccountIssuers cannot be configured.
	Audiences             authenticator.Audiences
	ServiceAccountIssuers []string
	// ServerID is a label of metrics.
	ServerID string
	Log      *slog.Logger
}

// OpenIssuers reads the configuration. It does not wait for the issuers. The caller must call Close.
func OpenIssuers(o *Options, c IssuersConfig) (*Issuers, error) {
	i := &Issuers{file: o.ConfigFile, audiences: c.Audiences, disallowedIssuers: c.ServiceAccountIssuers,
		anonymousFlag: o.Anonymous, serverID: c.ServerID, log: c.Log}
	i.lifetime, i.end = context.WithCancel(context.Background())
	if err := i.open(o); err != nil {
		i.end()
		return nil, err
	}
	return i, nil
}

func (i *Issuers) open(o *Options) error {
	configuration := &apiserver.AuthenticationConfiguration{}
	switch {
	case o.ConfigFile != "":
		configmetrics.RegisterMetrics()
		i.signingAlgs = oidc.AllValidSigningAlgorithms()
		text, err := os.ReadFile(o.ConfigFile)
		if err != nil {
			return fmt.Errorf("authentication-config: %w", err)
		}
		if configuration, err = parseConfiguration(text, i.disallowedIssuers, i.anonymousFlag != nil); err != nil {
			return fmt.Errorf("authentication-config: %s: %w", o.ConfigFile, err)
		}
		i.text = string(text)
		configmetrics.RecordAuthenticationConfigLastConfigInfo(i.serverID, i.text)
	case o.OIDC.configured():
		i.signingAlgs = o.OIDC.SigningAlgs
		var err error
		if configuration, err = o.OIDC.configuration(); err != nil {
			return err
		}
		if err := validateConfiguration(configuration, i.disallowedIssuers); err != nil {
			return fmt.Errorf("oidc-* flags: %w", err)
		}
	}
	set, err := i.newSet(configuration)
	if err != nil {
		return err
	}
	i.current.Store(set)
	return nil
}

// newSet creates the authenticators of a configuration.
func (i *Issuers) newSet(c *apiserver.AuthenticationConfiguration) (*issuerSet, error) {
	set := &issuerSet{anonymous: i.anonymousAuthenticator(c.Anonymous), end: func() {}}
	if len(c.JWT) == 0 {
		return set, nil
	}
	lifetime, end := context.WithCancel(i.lifetime)
	compiler := authenticationcel.NewDefaultCompiler()
	var tokens []authenticator.Token
	for n := range c.JWT {
		jwt := c.JWT[n]
		var ca oidc.CAContentProvider
		if pem := jwt.Issuer.CertificateAuthority; pem != "" {
			content, err := dynamiccertificates.NewStaticCAContent("oidc-authenticator", []byte(pem))
			if err != nil {
				end()
				return nil, fmt.Errorf("jwt[%d].issuer.certificateAuthority: %w", n, err)
			}
			ca = content
		}
		issuer, err := oidc.New(lifetime, oidc.Options{
			JWTAuthenticator: jwt, CAContentProvider: ca, SupportedSigningAlgs: i.signingAlgs,
			DisallowedIssuers: i.disallowedIssuers, Compiler: compiler, APIServerID: i.serverID,
		})
		if err != nil {
			end()
			return nil, fmt.Errorf("jwt[%d]: %w", n, err)
		}
		tokens = append(tokens, authenticator.WrapAudienceAgnosticToken(i.audiences, issuer))
		set.health = append(set.health, issuer.HealthCheck)
	}
	set.tokens, set.end = tokenunion.NewFailOnError(tokens...), end
	return set, nil
}

// anonymousAuthenticator returns the authenticator of requests without credentials, or nil.
func (i *Issuers) anonymousAuthenticator(c *apiserver.AnonymousAuthConfig) authenticator.Request {
	switch {
	case c != nil && !c.Enabled, c == nil && i.anonymousFlag != nil && !*i.anonymousFlag:
		return nil
	case c != nil:
		return anonymous.NewAuthenticator(c.Conditions)
	}
	return anonymous.NewAuthenticator(nil)
}

// AuthenticateToken returns the user of a token of one of the issuers.
func (i *Issuers) AuthenticateToken(ctx context.Context, token string) (*authenticator.Response, bool, error) {
	if set := i.current.Load(); set.tokens != nil {
		return set.tokens.AuthenticateToken(ctx, token)
	}
	return nil, false, nil
}

// AuthenticateRequest returns the anonymous user if the request can be anonymous.
func (i *Issuers) AuthenticateRequest(r *http.Request) (*authenticator.Response, bool, error) {
	if set := i.current.Load(); set.anonymous != nil {
		return set.anonymous.AuthenticateRequest(r)
	}
	return nil, false, nil
}

// Run applies changes of the file until ctx is done. A file with an error changes nothing.
func (i *Issuers) Run(ctx context.Context) {
	if i.file == "" {
		return
	}
	filesystem.WatchUntil(ctx, reloadPollInterval, i.file, func() {
		switch changed, err := i.reload(ctx); {
		case err != nil && ctx.Err() == nil:
			configmetrics.RecordAuthenticationConfigAutomaticReloadFailure(i.serverID)
			i.log.Error("authentication configuration not reloaded", "path", i.file, "err", err)
		case changed:
			configmetrics.RecordAuthenticationConfigAutomaticReloadSuccess(i.serverID, i.text)
			i.log.Info("authentication configuration reloaded", "path", i.file)
		}
	}, func(err error) { i.log.Warn("authentication configuration watch failed", "path", i.file, "err", err) })
}

// reload replaces the authenticators if the file has changed. It waits until the new issuers respond.
func (i *Issuers) reload(ctx context.Context) (changed bool, err error) {
	text, err := os.ReadFile(i.file)
	if err != nil {
		return false, err
	}
	if string(text) == i.text {
		return false, nil
	}
	configuration, err := parseConfiguration(text, i.disallowedIssuers, i.anonymousFlag != nil)
	if err != nil {
		return false, err
	}
	set, err := i.newSet(configuration)
	if err != nil {
		return false, err
	}
	if err := set.waitUntilHealthy(ctx); err != nil {
		set.end()
		return false, err
	}
	former := i.current.Swap(set)
	i.text = string(text)
	i.retired.Go(func() {
		defer former.end()
		select {
		case <-i.lifetime.Done():
		case <-time.After(formerIssuersPeriod):
		}
	})
	return true, nil
}

func (s *issuerSet) waitUntilHealthy(ctx context.Context) error {
	var last error
	err := wait.PollUntilContextTimeout(ctx, issuersPollInterval, issuersTimeout, true,
		func(context.Context) (bool, error) {
			last = nil
			for _, check := range s.health {
				last = errors.Join(last, check())
			}
			return last == nil, nil
		})
	return errors.Join(err, last)
}

// Close ends the requests to issuers.
func (i *Issuers) Close() {
	i.end()
	i.retired.Wait()
}
