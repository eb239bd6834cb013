package cis

import (
	"fmt"
	"slices"
	"strings"

	"berth/control"
	"berth/control/admission"
	"berth/control/audit"
	"berth/internal/cis"
)

// serverChecks returns the checks of section 1.2.
func serverChecks() map[string]check {
	return map[string]check{
		"1.2.1": live(anonymous),
		"1.2.2": always("there is no such setting: tokens are those of service accounts, bootstrap tokens and issuers"),
		"1.2.3": optionalPlugin("DenyServiceExternalIPs", "who may create Services: one with external IPs can "+
			"intercept traffic"),
		"1.2.4": ofFiles(kubeletClient),
		"1.2.5": ofFiles(kubeletAuthority),
		"1.2.6": live(authorization),
		"1.2.7": live(nodeAuthorizer),
		"1.2.8": live(rbacAuthorizer),
		"1.2.9": optionalPlugin("EventRateLimit", "whether API Priority and Fairness and --event-ttl limit events "+
			"enough"),
		"1.2.10": noAlwaysAdmit,
		"1.2.11": optionalPlugin("AlwaysPullImages", "whether imagePullCredentialsVerificationPolicy of the nodes "+
			"protects private images that are already on a node"),
		"1.2.12": requiredPlugin("ServiceAccount"),
		"1.2.13": requiredPlugin("NamespaceLifecycle"),
		"1.2.14": requiredPlugin("NodeRestriction"),
		"1.2.15": live(profiling),
		"1.2.16": auditLog,
		"1.2.17": auditAge,
		"1.2.18": auditBackups,
		"1.2.19": auditSize,
		"1.2.20": requestLimit,
		"1.2.21": always("each service account token is compared with its account and pod; no setting turns that off"),
		"1.2.22": ofFiles(accountKey),
		"1.2.23": storeClient,
		"1.2.24": ofFiles(servingCertificate),
		"1.2.25": ofFiles(clientAuthority),
		"1.2.26": storeAuthority,
		"1.2.27": encryptionConfigured,
		"1.2.28": encryptionProvider,
		"1.2.29": live(ciphers),
		"1.2.30": extendedTokens,
	}
}

// privatePath is a request that a client without credentials must not be able to send.
const privatePath = "/api/v1/namespaces/kube-system/secrets"

// protectedPaths are requests that RBAC allows only to users.
var protectedPaths = []string{"/api", "/apis", privatePath}

// publicPaths are requests that RBAC allows without credentials.
var publicPaths = []string{"/livez", "/version"}

func anonymous(f *Facts, s *Server) cis.Finding {
	if f.AuthenticationErr != nil {
		return cis.Unknown("%v", f.AuthenticationErr)
	}
	var open, statuses []string
	for _, path := range protectedPaths {
		if s.Anonymous[path] < statusError {
			open = append(open, path)
		}
		statuses = append(statuses, fmt.Sprintf("%s %d", path, s.Anonymous[path]))
	}
	switch {
	case len(open) > 0:
		return cis.Failed("remove bindings to system:unauthenticated and system:anonymous, or set "+
			"--anonymous-auth=false",
			"requests without credentials are allowed: %s", cis.List(open))
	case !f.Anonymous.Enabled:
		return cis.Passed("--anonymous-auth=false; status without credentials: %s", cis.List(statuses))
	case len(f.Anonymous.Paths) > 0:
		return cis.Passed("only for %s; status without credentials: %s", cis.List(f.Anonymous.Paths),
			cis.List(statuses))
	}
	return cis.Deviation("enabled, as in Kubernetes, for health checks of load balancers and /version; RBAC forbids "+
		"everything else; status without credentials: %s", cis.List(statuses))
}

func authorization(_ *Facts, s *Server) cis.Finding {
	if code := s.Anonymous[privatePath]; code < statusError {
		return cis.Failed("remove the binding that allows this",
			"a request for Secrets without credentials gets %d", code)
	}
	return cis.Passed("every request is authorized, and no setting turns that off: a request for Secrets without "+
		"credentials gets %d", s.Anonymous[privatePath])
}

func nodeAuthorizer(_ *Facts, s *Server) cis.Finding {
	if s.Node.Allowed || !strings.Contains(s.Node.Reason, "no relationship found") {
		return cis.Failed("remove bindings to the group system:nodes",
			"a node may read Secrets of other nodes: allowed %t, reason %q", s.Node.Allowed, s.Node.Reason)
	}
	return cis.Passed("a node may not read a Secret that no pod on it uses: %s", s.Node.Reason)
}

func rbacAuthorizer(_ *Facts, s *Server) cis.Finding {
	switch {
	case strings.HasPrefix(s.RBAC.Reason, "RBAC:"):
		return cis.Passed("a review of an authenticated user: %s", s.RBAC.Reason)
	case s.RBAC.Allowed:
		return cis.Failed("report this as an error of the server",
			"a user without permissions is allowed: %q", s.RBAC.Reason)
	}
	return cis.ToReview("the ClusterRoleBinding system:discovery, which was changed",
		"a review of an authenticated user is denied: %q", s.RBAC.Reason)
}

func profiling(_ *Facts, s *Server) cis.Finding {
	if s.Profiling < statusError {
		return cis.Failed("report this as an error of the server", "/debug/pprof/ of %s returns %d", s.URL, s.Profiling)
	}
	return cis.Passed("profiling is not served: /debug/pprof/ returns %d for the administrator", s.Profiling)
}

// pluginEnabled reports whether an admission plugin runs.
func (f *Facts) pluginEnabled(name string) bool {
	if slices.Contains(f.Config.EnabledAdmissionPlugins, name) {
		return true
	}
	return slices.Contains(admission.Names(), name) && !slices.Contains(f.Config.DisabledAdmissionPlugins, name) &&
		!slices.Contains(admission.NamesDisabledByDefault(), name)
}

func requiredPlugin(name string) check {
	return func(f *Facts) cis.Finding {
		if !f.pluginEnabled(name) {
			return cis.Failed("remove "+name+" from --disable-admission-plugins", "%s is disabled", name)
		}
		return cis.Passed("%s is enabled", name)
	}
}

// optionalPlugin checks a plugin that is not enabled by default, as in Kubernetes.
func optionalPlugin(name, lookAt string) check {
	return func(f *Facts) cis.Finding {
		if !f.pluginEnabled(name) {
			return cis.ToReview(lookAt+"; or set --enable-admission-plugins="+name, "%s is not enabled", name)
		}
		return cis.Passed("%s is enabled", name)
	}
}

func noAlwaysAdmit(f *Facts) cis.Finding {
	const name = "AlwaysAdmit"
	if f.pluginEnabled(name) {
		return cis.Failed("remove "+name+" from --enable-admission-plugins", "%s is enabled", name)
	}
	return cis.Passed("%s is not one of the %d admission plugins", name, len(admission.Names()))
}

func auditLog(f *Facts) cis.Finding {
	a := f.Config.Audit
	switch {
	case a.Log.Path != "":
		return cis.Passed("--audit-log-path=%s", a.Log.Path)
	case a.Webhook.ConfigFile != "":
		return cis.ToReview("that the webhook keeps the events", "no log file; a webhook gets the events")
	}
	return cis.Failed("set --audit-log-path", "no audit log is written")
}

// rotated returns a check of the log file. It does not apply to logs that other programs keep.
func rotated(f *Facts, one func(audit.LogOptions) cis.Finding) cis.Finding {
	l := f.Config.Audit.Log
	switch {
	case l.Path == "" && f.Config.Audit.Webhook.ConfigFile == "":
		return cis.Failed("set --audit-log-path", "no audit log is written")
	case l.Path == "":
		return cis.Absent("no log file: the webhook keeps the events")
	case l.Path == "-":
		return cis.Absent("the log goes to the standard output: the log service of the host keeps it")
	}
	return one(l)
}

func auditAge(f *Facts) cis.Finding {
	return rotated(f, func(l audit.LogOptions) cis.Finding {
		switch {
		case l.MaxAge == 0:
			return cis.Passed("--audit-log-maxage=0: no file is removed because of its age")
		case l.MaxAge >= 30:
			return cis.Passed("--audit-log-maxage=%d", l.MaxAge)
		}
		return cis.Failed("set --audit-log-maxage to 30 or 0", "--audit-log-maxage=%d", l.MaxAge)
	})
}

func auditBackups(f *Facts) cis.Finding {
	return rotated(f, func(l audit.LogOptions) cis.Finding {
		switch least := audit.DefaultOptions().Log.MaxBackups; {
		case l.MaxBackups == 0:
			return cis.Passed("--audit-log-maxbackup=0: all files are kept")
		case l.MaxBackups >= 10:
			return cis.Passed("--audit-log-maxbackup=%d", l.MaxBackups)
		case l.MaxBackups < least:
			return cis.Failed("set --audit-log-maxbackup to 10", "--audit-log-maxbackup=%d", l.MaxBackups)
		}
		return cis.Deviation("--audit-log-maxbackup=%d: the log is limited to %d MiB for small hosts; raise the limit "+
			"to keep events for longer, or send them to a webhook", l.MaxBackups, (l.MaxBackups+1)*l.MaxSize)
	})
}

func auditSize(f *Facts) cis.Finding {
	return rotated(f, func(l audit.LogOptions) cis.Finding {
		switch least := audit.DefaultOptions().Log.MaxSize; {
		case l.MaxSize == 0:
			return cis.Passed("--audit-log-maxsize=0: the file is never rotated")
		case l.MaxSize >= 100:
			return cis.Passed("--audit-log-maxsize=%d", l.MaxSize)
		case l.MaxSize < least:
			return cis.Failed("set --audit-log-maxsize to 100", "--audit-log-maxsize=%d", l.MaxSize)
		}
		return cis.Deviation("--audit-log-maxsize=%d: smaller files of small hosts; raise the limit to keep events "+
			"for longer, or send them to a webhook", l.MaxSize)
	})
}

// requireFiles checks that files of the directory of certificates exist and that no certificate of them has expired.
func (f *Facts) requireFiles(what string, names ...string) cis.Finding {
	var missing, expired []string
	for _, name := range names {
		if len(f.pki(func(found string) bool { return found == name })) == 0 {
			missing = append(missing, name)
		}
		if slices.Contains(f.Files.Expired, name) {
			expired = append(expired, name)
		}
	}
	switch {
	case len(missing) > 0:
		return cis.Failed("start the server, which creates its certificates and keys", "missing in pki: %s",
			cis.List(missing))
	case len(expired) > 0:
		return cis.Failed("start the server, which renews its certificates", "expired: %s", cis.List(expired))
	}
	return cis.Passed("%s: pki/%s", what, strings.Join(names, ", pki/"))
}

func kubeletClient(f *Facts) cis.Finding {
	return f.requireFiles("the server authenticates to nodes with", "node-client.crt", "node-client.key")
}

func kubeletAuthority(f *Facts) cis.Finding {
	return f.requireFiles("the server verifies serving certificates of nodes with", "nodes-ca.crt")
}

func accountKey(f *Facts) cis.Finding {
	return f.requireFiles("tokens of service accounts are signed and verified with", "service-account.key")
}

func servingCertificate(f *Facts) cis.Finding {
	return f.requireFiles("the server presents", "server.crt", "server.key")
}

func clientAuthority(f *Facts) cis.Finding {
	return f.requireFiles("client certificates are verified with", "ca.crt")
}

// encryptionFor returns the provider that encrypts Secrets. The first entry that selects a resource applies to it.
func (f *Facts) encryptionFor() string {
	for _, e := range f.Encryption {
		for _, resource := range []string{"secrets", "*.", "*.*"} {
			if slices.Contains(e.Resources, resource) {
				return e.Provider
			}
		}
	}
	return ""
}

func encryptionConfigured(f *Facts) cis.Finding {
	if f.EncryptionErr != nil {
		return cis.Unknown("%v", f.EncryptionErr)
	}
	if provider := f.encryptionFor(); provider == "" || provider == "identity" {
		return cis.Failed("add secrets to the EncryptionConfiguration with a provider other than identity",
			"Secrets are not encrypted in the store")
	}
	return cis.Passed("Secrets are encrypted as %s configures", f.encryptionPath())
}

// encryptionPath returns the file of the EncryptionConfiguration.
func (f *Facts) encryptionPath() string {
	if f.Config.EncryptionConfig != "" {
		return f.Config.EncryptionConfig
	}
	return "pki/" + encryptionFile
}

func encryptionProvider(f *Facts) cis.Finding {
	if f.EncryptionErr != nil {
		return cis.Unknown("%v", f.EncryptionErr)
	}
	const remedy = "use aescbc, kms or secretbox as the first provider of secrets"
	switch provider := f.encryptionFor(); provider {
	case "aescbc", "kms", "secretbox":
		return cis.Passed("%s encrypts Secrets", provider)
	case "":
		return cis.Failed(remedy, "no provider encrypts Secrets")
	default:
		return cis.Failed(remedy, "%s is the first provider of Secrets", provider)
	}
}

func ciphers(_ *Facts, s *Server) cis.Finding {
	switch {
	case s.OldTLS != "":
		return cis.Failed("report this as an error of the server", "the server accepts %s", s.OldTLS)
	case s.WeakCipher != "":
		return cis.Failed("report this as an error of the server", "the server accepts %s", s.WeakCipher)
	}
	return cis.Passed("the server rejects versions below TLS 1.2 and all suites without forward secrecy and " +
		"authenticated encryption")
}

func requestLimit(*Facts) cis.Finding {
	return cis.Passed("%s, the default of Kubernetes; there is no setting", control.RequestTimeout)
}

func extendedTokens(f *Facts) cis.Finding {
	if f.Config.ExtendTokenExpiration {
		return cis.Deviation("true, the default of Kubernetes, for programs that read their token only once; the " +
			"token becomes invalid with its pod; set --service-account-extend-token-expiration=false if the audit " +
			"log has no annotation authentication.k8s.io/stale-token")
	}
	return cis.Passed("--service-account-extend-token-expiration=false")
}
