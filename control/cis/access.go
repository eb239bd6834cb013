package cis

import (
	auditinternal "k8s.io/apiserver/pkg/apis/audit"
	auditpolicy "k8s.io/apiserver/pkg/audit/policy"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"berth/internal/cis"
)

// accessChecks returns the checks of chapter 3.
func accessChecks() map[string]check {
	return map[string]check{
		"3.1.1": userCertificates,
		"3.1.2": ofCluster(accountTokens),
		"3.1.3": ofCluster(bootstrapTokens),
		"3.2.1": auditPolicy,
		"3.2.2": auditCoverage,
	}
}

func userCertificates(f *Facts) cis.Finding {
	if f.AuthenticationErr != nil {
		return cis.Unknown("%v", f.AuthenticationErr)
	}
	sources := f.Issuers
	if f.Config.Authentication.Webhook.ConfigFile != "" {
		sources++
	}
	if f.Config.Authentication.RequestHeader.ClientCAFile != "" {
		sources++
	}
	if sources == 0 {
		return cis.ToReview("who has a kubeconfig of berth-control kubeconfig; configure an issuer with "+
			"--authentication-config for users", "no issuer, token webhook or front proxy is configured: users can "+
			"authenticate only with client certificates and tokens")
	}
	return cis.ToReview("that users authenticate with it, and that only administrators have kubeconfigs with "+
		"certificates", "%d other sources of users are configured", sources)
}

func accountTokens(_ *Facts, c *Cluster) cis.Finding {
	if len(c.TokenSecrets) == 0 {
		return cis.Passed("no Secret contains a token of a service account; other tokens expire")
	}
	return cis.ToReview("that no user has these tokens, which are valid for years",
		"Secrets with tokens of service accounts: %s", cis.List(c.TokenSecrets))
}

func bootstrapTokens(_ *Facts, c *Cluster) cis.Finding {
	if len(c.BootstrapTokens) == 0 {
		return cis.Passed("there are no bootstrap tokens")
	}
	return cis.ToReview("that these tokens are for joining nodes (berth-control token list); they expire",
		"%d bootstrap tokens", len(c.BootstrapTokens))
}

func auditPolicy(f *Facts) cis.Finding {
	if f.PolicyErr != nil {
		return cis.Unknown("%v", f.PolicyErr)
	}
	if found := auditLog(f); found.Verdict == cis.Fail {
		return found
	}
	if file := f.Config.Audit.PolicyFile; file != "" {
		return cis.Passed("%s with %d rules", file, len(f.Policy.Rules))
	}
	return cis.Passed("the default policy with %d rules: the metadata of writes, and of requests into pods and nodes",
		len(f.Policy.Rules))
}

// auditedRequest is a request that the benchmark wants to be recorded.
type auditedRequest struct {
	group, resource, subresource, verb string
	// secret requests must not be recorded with their bodies.
	secret bool
}

// auditedRequests are the requests of control 3.2.2.
var auditedRequests = []auditedRequest{
	{"", "secrets", "", "get", true},
	{"", "secrets", "", "update", true},
	{"", "configmaps", "", "update", true},
	{"authentication.k8s.io", "tokenreviews", "", "create", true},
	{"", "pods", "", "create", false},
	{"apps", "deployments", "", "update", false},
	{"", "pods", "exec", "create", false},
	{"", "pods", "portforward", "create", false},
	{"", "pods", "proxy", "get", false},
	{"", "services", "proxy", "get", false},
	{"certificates.k8s.io", "certificatesigningrequests", "", "create", false},
	{"", "serviceaccounts", "token", "create", true},
}

func (r auditedRequest) String() string {
	text := r.verb + " " + r.resource
	if r.subresource != "" {
		text += "/" + r.subresource
	}
	return text
}

func auditCoverage(f *Facts) cis.Finding {
	if f.PolicyErr != nil {
		return cis.Unknown("%v", f.PolicyErr)
	}
	if found := auditLog(f); found.Verdict == cis.Fail {
		return found
	}
	evaluator := auditpolicy.NewPolicyRuleEvaluator(f.Policy)
	var missing, bodies []string
	for _, r := range auditedRequests {
		level := evaluator.EvaluatePolicyRule(authorizer.AttributesRecord{
			User: &user.DefaultInfo{Name: "jane", Groups: []string{user.AllAuthenticated}},
			Verb: r.verb, APIGroup: r.group, APIVersion: "v1", Resource: r.resource, Subresource: r.subresource,
			Namespace: "team", Name: "one", ResourceRequest: true,
		}).Level
		switch {
		case level == auditinternal.LevelNone:
			missing = append(missing, r.String())
		case r.secret && !level.Less(auditinternal.LevelRequest):
			bodies = append(bodies, r.String())
		}
	}
	switch {
	case len(bodies) > 0:
		return cis.Failed("use the level Metadata for them in --audit-policy-file",
			"bodies with secrets are recorded: %s", cis.List(bodies))
	case len(missing) > 0:
		return cis.ToReview("whether these have to be recorded: set --audit-policy-file", "not recorded: %s",
			cis.List(missing))
	}
	return cis.Passed("%d kinds of requests are recorded, without bodies of secrets", len(auditedRequests))
}
