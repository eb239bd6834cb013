package validation

import (
	"net/url"
	"slices"
	"strings"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"berth/internal/rules"
)

// Defaults and limits of webhooks.
const (
	defaultWebhookTimeout = 10 // seconds
	maxWebhookTimeout     = 30
	defaultWebhookPort    = 443
)

// reviewVersions are the versions of AdmissionReview that the server can send.
var reviewVersions = []string{"v1", "v1beta1"}

// webhookRules are the rules of webhook configurations.
func webhookRules(compilers Compilers) map[schema.GroupKind]rules.Rules {
	return map[schema.GroupKind]rules.Rules{
		admissionKind("ValidatingWebhookConfiguration"): definition[*admissionv1.ValidatingWebhookConfiguration]{
			AnyFinalizer:  true,
			ClusterScoped: true, ValidateNewName: newAdmissionName,
			SetDefaults: func(c *admissionv1.ValidatingWebhookConfiguration) {
				for i := range c.Webhooks {
					defaultWebhook(&c.Webhooks[i])
				}
			},
			ValidateCreate: func(k *validator, c *admissionv1.ValidatingWebhookConfiguration) {
				k.webhooks(c.Webhooks, nil)
			},
			ValidateUpdate: func(k *validator, c, old *admissionv1.ValidatingWebhookConfiguration) {
				k.webhooks(c.Webhooks, old.Webhooks)
			},
		}.Rules(compiling(compilers)),
		admissionKind("MutatingWebhookConfiguration"): definition[*admissionv1.MutatingWebhookConfiguration]{
			AnyFinalizer:  true,
			ClusterScoped: true, ValidateNewName: newAdmissionName,
			SetDefaults: func(c *admissionv1.MutatingWebhookConfiguration) {
				for i := range c.Webhooks {
					defaultMutatingWebhook(&c.Webhooks[i])
				}
			},
			ValidateCreate: func(k *validator, c *admissionv1.MutatingWebhookConfiguration) {
				k.mutatingWebhooks(c.Webhooks, nil)
			},
			ValidateUpdate: func(k *validator, c, old *admissionv1.MutatingWebhookConfiguration) {
				k.mutatingWebhooks(c.Webhooks, old.Webhooks)
			},
		}.Rules(compiling(compilers)),
	}
}

// common returns the part of a mutating webhook that validating webhooks have too.
func common(w *admissionv1.MutatingWebhook) admissionv1.ValidatingWebhook {
	return admissionv1.ValidatingWebhook{
		Name: w.Name, ClientConfig: w.ClientConfig, Rules: w.Rules, FailurePolicy: w.FailurePolicy,
		MatchPolicy: w.MatchPolicy, NamespaceSelector: w.NamespaceSelector, ObjectSelector: w.ObjectSelector,
		SideEffects: w.SideEffects, TimeoutSeconds: w.TimeoutSeconds,
		AdmissionReviewVersions: w.AdmissionReviewVersions, MatchConditions: w.MatchConditions,
	}
}

func defaultWebhook(w *admissionv1.ValidatingWebhook) {
	rules.SetIfNil(&w.FailurePolicy, admissionv1.Fail)
	rules.SetIfNil(&w.MatchPolicy, admissionv1.Equivalent)
	rules.SetIfNil(&w.NamespaceSelector, metav1.LabelSelector{})
	rules.SetIfNil(&w.ObjectSelector, metav1.LabelSelector{})
	rules.SetIfNil(&w.TimeoutSeconds, defaultWebhookTimeout)
	if w.ClientConfig.Service != nil {
		rules.SetIfNil(&w.ClientConfig.Service.Port, defaultWebhookPort)
	}
	for i := range w.Rules {
		rules.SetIfNil(&w.Rules[i].Scope, admissionv1.AllScopes)
	}
}

func defaultMutatingWebhook(w *admissionv1.MutatingWebhook) {
	c := common(w)
	defaultWebhook(&c)
	w.FailurePolicy, w.MatchPolicy, w.TimeoutSeconds = c.FailurePolicy, c.MatchPolicy, c.TimeoutSeconds
	w.NamespaceSelector, w.ObjectSelector = c.NamespaceSelector, c.ObjectSelector
	rules.SetIfNil(&w.ReinvocationPolicy, admissionv1.NeverReinvocationPolicy)
}

// webhooks validates the webhooks of a configuration. Match conditions that have not changed are valid.
func (k *validator) webhooks(list, old []admissionv1.ValidatingWebhook) {
	at := field.NewPath("webhooks")
	known := sets.New[string]()
	for i := range old {
		known.Insert(conditionTexts(old[i].MatchConditions)...)
	}
	unchanged := slices.EqualFunc(list, old, func(a, b admissionv1.ValidatingWebhook) bool {
		return equality.Semantic.DeepEqual(a.MatchConditions, b.MatchConditions)
	})
	names := map[string]bool{}
	for i := range list {
		w, at := &list[i], at.Index(i)
		k.webhook(at, w)
		k.unique(at.Child("name"), names, w.Name)
		if !unchanged && len(w.MatchConditions) > 0 {
			e := &expressions{validator: k, compile: k.compilers.Policies(false), stored: known}
			e.matchConditions(at.Child("matchConditions"), w.MatchConditions)
		}
	}
}

func (k *validator) mutatingWebhooks(list, old []admissionv1.MutatingWebhook) {
	convert := func(list []admissionv1.MutatingWebhook) []admissionv1.ValidatingWebhook {
		out := make([]admissionv1.ValidatingWebhook, len(list))
		for i := range list {
			out[i] = common(&list[i])
		}
		return out
	}
	k.webhooks(convert(list), convert(old))
	for i := range list {
		rules.OneOfIfSet(k, field.NewPath("webhooks").Index(i).Child("reinvocationPolicy"), list[i].ReinvocationPolicy,
			admissionv1.IfNeededReinvocationPolicy, admissionv1.NeverReinvocationPolicy)
	}
}

// webhook validates everything except match conditions.
func (k *validator) webhook(at *field.Path, w *admissionv1.ValidatingWebhook) {
	k.AddAll(validation.IsFullyQualifiedName(at.Child("name"), w.Name))
	for i := range w.Rules {
		k.admissionRule(at.Child("rules").Index(i), &w.Rules[i], allOperations)
	}
	rules.OneOfIfSet(k, at.Child("failurePolicy"), w.FailurePolicy, admissionv1.Fail, admissionv1.Ignore)
	rules.OneOfIfSet(k, at.Child("matchPolicy"), w.MatchPolicy, admissionv1.Equivalent, admissionv1.Exact)
	if w.SideEffects == nil {
		k.Required(at.Child("sideEffects"), "must specify one of None, NoneOnDryRun")
	}
	rules.OneOfIfSet(k, at.Child("sideEffects"), w.SideEffects, admissionv1.SideEffectClassNone,
		admissionv1.SideEffectClassNoneOnDryRun)
	if t := w.TimeoutSeconds; t != nil && (*t < 1 || *t > maxWebhookTimeout) {
		k.Invalid(at.Child("timeoutSeconds"), *t, "the timeout value must be between 1 and 30 seconds")
	}
	if w.NamespaceSelector != nil {
		k.Selector(at.Child("namespaceSelector"), w.NamespaceSelector)
	}
	if w.ObjectSelector != nil {
		k.Selector(at.Child("objectSelector"), w.ObjectSelector)
	}
	k.webhookClient(at.Child("clientConfig"), &w.ClientConfig)
	k.webhookVersions(at.Child("admissionReviewVersions"), w.AdmissionReviewVersions)
}

func (k *validator) webhookVersions(at *field.Path, list []string) {
	if len(list) == 0 {
		k.Required(at, "must specify one of "+strings.Join(reviewVersions, ", "))
		return
	}
	seen := map[string]bool{}
	for i, v := range list {
		if seen[v] {
			k.Invalid(at.Index(i), v, "duplicate version")
			continue
		}
		seen[v] = true
		k.InvalidEach(at.Index(i), v, validation.IsDNS1035Label(v))
	}
	if !slices.ContainsFunc(list, func(v string) bool { return slices.Contains(reviewVersions, v) }) {
		k.Invalid(at, list, "must include at least one of %s", strings.Join(reviewVersions, ", "))
	}
}

// webhookClient validates how the server reaches a webhook.
func (k *validator) webhookClient(at *field.Path, c *admissionv1.WebhookClientConfig) {
	switch {
	case (c.URL == nil) == (c.Service == nil):
		k.Required(at, "exactly one of url or service is required")
	case c.URL != nil:
		k.webhookURL(at.Child("url"), *c.URL)
	default:
		k.webhookService(at.Child("service"), c.Service)
	}
}

func (k *validator) webhookURL(at *field.Path, text string) {
	const form = "; desired format: https://host[/path]"
	u, err := url.Parse(text)
	if err != nil {
		k.Required(at, "url must be a valid URL: "+err.Error()+form)
		return
	}
	if u.Scheme != "https" {
		k.Invalid(at, u.Scheme, "'https' is the only allowed URL scheme%s", form)
	}
	if u.Host == "" {
		k.Invalid(at, u.Host, "host must be specified%s", form)
	}
	if u.User != nil {
		k.Invalid(at, u.User.Username(), "user information is not permitted in the URL")
	}
	if u.Fragment != "" {
		k.Invalid(at, u.Fragment, "fragments are not permitted in the URL")
	}
	if u.RawQuery != "" {
		k.Invalid(at, u.RawQuery, "query parameters are not permitted in the URL")
	}
}

func (k *validator) webhookService(at *field.Path, s *admissionv1.ServiceReference) {
	if s.Name == "" {
		k.Required(at.Child("name"), "")
	}
	if s.Namespace == "" {
		k.Required(at.Child("namespace"), "")
	}
	if s.Port != nil {
		k.port(at.Child("port"), *s.Port)
	}
	if s.Path == nil || *s.Path == "" || *s.Path == "/" {
		return
	}
	at = at.Child("path")
	rest, absolute := strings.CutPrefix(*s.Path, "/")
	if !absolute {
		k.Invalid(at, *s.Path, "must start with a '/'")
	}
	for i, segment := range strings.Split(strings.TrimSuffix(rest, "/"), "/") {
		if segment == "" {
			k.Invalid(at, *s.Path, "segment[%d] may not be empty", i)
			continue
		}
		for _, problem := range validation.IsDNS1123Subdomain(segment) {
			k.Invalid(at, *s.Path, "segment[%d]: %s", i, problem)
		}
	}
}
