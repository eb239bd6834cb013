package validation

import (
	"strings"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/validate/content"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"berth/internal/rules"
)

// policyRules are the rules of admission policies and their bindings.
func policyRules(compilers Compilers) map[schema.GroupKind]rules.Rules {
	return map[schema.GroupKind]rules.Rules{
		admissionKind("ValidatingAdmissionPolicy"): definition[*admissionv1.ValidatingAdmissionPolicy]{
			AnyFinalizer:  true,
			ClusterScoped: true, ValidateNewName: newAdmissionName,
			SetDefaults: func(p *admissionv1.ValidatingAdmissionPolicy) {
				rules.SetIfNil(&p.Spec.FailurePolicy, admissionv1.Fail)
				defaultMatchResources(p.Spec.MatchConstraints)
			},
			ValidateCreate: func(k *validator, p *admissionv1.ValidatingAdmissionPolicy) {
				k.validatingPolicy(p, &admissionv1.ValidatingAdmissionPolicy{})
			},
			ValidateUpdate: (*validator).validatingPolicy,
			ValidateStatus: (*validator).validatingPolicyStatus,
		}.Rules(compiling(compilers)),
		admissionKind("ValidatingAdmissionPolicyBinding"): definition[*admissionv1.ValidatingAdmissionPolicyBinding]{
			AnyFinalizer:  true,
			ClusterScoped: true, ValidateNewName: newAdmissionName,
			SetDefaults: func(b *admissionv1.ValidatingAdmissionPolicyBinding) {
				defaultMatchResources(b.Spec.MatchResources)
			},
			Validate: func(k *validator, b *admissionv1.ValidatingAdmissionPolicyBinding) {
				k.binding(b.Spec.PolicyName, b.Spec.ParamRef)
				k.matchResources(spec.Child("matchResources"), b.Spec.MatchResources, allOperations)
				k.validationActions(spec.Child("validationActions"), b.Spec.ValidationActions)
			},
		}.Rules(compiling(compilers)),
		admissionKind("MutatingAdmissionPolicy"): definition[*admissionv1.MutatingAdmissionPolicy]{
			AnyFinalizer:  true,
			ClusterScoped: true, ValidateNewName: newAdmissionName,
			SetDefaults: func(p *admissionv1.MutatingAdmissionPolicy) {
				rules.SetIfNil(&p.Spec.FailurePolicy, admissionv1.Fail)
				defaultMatchResources(p.Spec.MatchConstraints)
			},
			ValidateCreate: func(k *validator, p *admissionv1.MutatingAdmissionPolicy) {
				k.mutatingPolicy(p, &admissionv1.MutatingAdmissionPolicy{})
			},
			ValidateUpdate: (*validator).mutatingPolicy,
		}.Rules(compiling(compilers)),
		admissionKind("MutatingAdmissionPolicyBinding"): definition[*admissionv1.MutatingAdmissionPolicyBinding]{
			AnyFinalizer:  true,
			ClusterScoped: true, ValidateNewName: newAdmissionName,
			SetDefaults: func(b *admissionv1.MutatingAdmissionPolicyBinding) {
				defaultMatchResources(b.Spec.MatchResources)
			},
			Validate: func(k *validator, b *admissionv1.MutatingAdmissionPolicyBinding) {
				k.binding(b.Spec.PolicyName, b.Spec.ParamRef)
				k.matchResources(spec.Child("matchResources"), b.Spec.MatchResources, mutatedOperations)
			},
		}.Rules(compiling(compilers)),
	}
}

// policy validates what both kinds of policies have, except expressions.
func (k *validator) policy(failure *admissionv1.FailurePolicyType, params *admissionv1.ParamKind,
	match *admissionv1.MatchResources, operations []admissionv1.OperationType) {
	if failure == nil {
		k.Required(spec.Child("failurePolicy"), "")
	}
	rules.OneOfIfSet(k, spec.Child("failurePolicy"), failure, admissionv1.Fail, admissionv1.Ignore)
	if params != nil {
		k.paramKind(spec.Child("paramKind"), params)
	}
	at := spec.Child("matchConstraints")
	if match == nil {
		k.Required(at, "")
		return
	}
	k.matchResources(at, match, operations)
	if len(match.ResourceRules) == 0 {
		k.Required(at.Child("resourceRules"), "")
	}
}

// validatingPolicy validates a policy. The expressions of an unchanged spec are valid.
func (k *validator) validatingPolicy(p, old *admissionv1.ValidatingAdmissionPolicy) {
	k.policy(p.Spec.FailurePolicy, p.Spec.ParamKind, p.Spec.MatchConstraints, allOperations)
	validations, annotations := spec.Child("validations"), spec.Child("auditAnnotations")
	if len(p.Spec.Validations) == 0 && len(p.Spec.AuditAnnotations) == 0 {
		const either = "validations or auditAnnotations must contain at least one item"
		k.Required(validations, either)
		k.Required(annotations, either)
	}
	if equality.Semantic.DeepEqual(p.Spec, old.Spec) {
		return
	}
	e := k.policyExpressions(p.Spec.ParamKind, p.Spec.Variables, old.Spec.Variables, old.Spec.MatchConditions)
	for _, v := range old.Spec.Validations {
		e.stored.Insert(v.Expression, v.MessageExpression)
	}
	for _, a := range old.Spec.AuditAnnotations {
		e.stored.Insert(a.ValueExpression)
	}
	e.matchConditions(spec.Child("matchConditions"), p.Spec.MatchConditions)
	e.variables(spec.Child("variables"), p.Spec.Variables)
	for i := range p.Spec.Validations {
		e.validation(validations.Index(i), &p.Spec.Validations[i])
	}
	e.auditAnnotations(annotations, p.Name, p.Spec.AuditAnnotations)
}

// policyExpressions returns what validates the expressions of a policy. The arguments are of the policy and of the
// stored one.
func (k *validator) policyExpressions(params *admissionv1.ParamKind, variables, storedVariables []admissionv1.Variable,
	storedConditions []admissionv1.MatchCondition) *expressions {
	e := &expressions{validator: k, compile: k.compilers.Policies(len(variables) > 0), params: params != nil,
		stored: sets.New(conditionTexts(storedConditions)...)}
	for _, v := range storedVariables {
		e.stored.Insert(v.Expression)
	}
	return e
}

var validationReasons = []metav1.StatusReason{metav1.StatusReasonForbidden, metav1.StatusReasonInvalid,
	metav1.StatusReasonRequestEntityTooLarge}

// validation validates a validation of a policy.
func (e *expressions) validation(at *field.Path, v *admissionv1.Validation) {
	e.check(at.Child("expression"), Condition, v.Expression)
	if v.MessageExpression != "" {
		e.check(at.Child("messageExpression"), Message, v.MessageExpression)
	}
	switch message := strings.TrimSpace(v.Message); {
	case v.Message != "" && message == "":
		e.Invalid(at.Child("message"), v.Message, "message must be non-empty if specified")
	case strings.ContainsAny(message, "\n\r"):
		e.Invalid(at.Child("message"), v.Message, "message must not contain line breaks")
	}
	rules.OneOfIfSet(e, at.Child("reason"), v.Reason, validationReasons...)
}

// auditAnnotations validates the annotations that a policy adds to audit events. Their keys have the name of the
// policy as prefix.
func (e *expressions) auditAnnotations(at *field.Path, policy string, list []admissionv1.AuditAnnotation) {
	e.atMost(at, len(list), maxAuditAnnotations)
	keys := map[string]bool{}
	for i, a := range list {
		at := at.Index(i)
		e.InvalidEach(at.Child("key"), a.Key, validation.IsQualifiedName(policy+"/"+a.Key))
		e.unique(at.Child("key"), keys, a.Key)
		if at := at.Child("valueExpression"); len(a.ValueExpression) > maxAuditAnnotationValueLength {
			e.Add(field.TooLong(at, "", maxAuditAnnotationValueLength))
		} else {
			e.check(at, AuditAnnotation, a.ValueExpression)
		}
	}
}

// mutatingPolicy validates a policy. The expressions of an unchanged spec are valid.
func (k *validator) mutatingPolicy(p, old *admissionv1.MutatingAdmissionPolicy) {
	k.policy(p.Spec.FailurePolicy, p.Spec.ParamKind, p.Spec.MatchConstraints, mutatedOperations)
	rules.OneOf(k, spec.Child("reinvocationPolicy"), p.Spec.ReinvocationPolicy, admissionv1.IfNeededReinvocationPolicy,
		admissionv1.NeverReinvocationPolicy)
	mutations := spec.Child("mutations")
	if len(p.Spec.Mutations) == 0 {
		k.Required(mutations, "mutations must contain at least one item")
	}
	if equality.Semantic.DeepEqual(p.Spec, old.Spec) {
		return
	}
	e := k.policyExpressions(p.Spec.ParamKind, p.Spec.Variables, old.Spec.Variables, old.Spec.MatchConditions)
	for _, m := range old.Spec.Mutations {
		if m.ApplyConfiguration != nil {
			e.stored.Insert(m.ApplyConfiguration.Expression)
		}
		if m.JSONPatch != nil {
			e.stored.Insert(m.JSONPatch.Expression)
		}
	}
	e.matchConditions(spec.Child("matchConditions"), p.Spec.MatchConditions)
	e.variables(spec.Child("variables"), p.Spec.Variables)
	for i := range p.Spec.Mutations {
		e.mutation(mutations.Index(i), &p.Spec.Mutations[i])
	}
}

// mutation validates a mutation: it has the field of its patch type only.
func (e *expressions) mutation(at *field.Path, m *admissionv1.Mutation) {
	rules.OneOf(e, at.Child("patchType"), m.PatchType, admissionv1.PatchTypeApplyConfiguration,
		admissionv1.PatchTypeJSONPatch)
	apply, patch := at.Child("applyConfiguration"), at.Child("jsonPatch")
	switch m.PatchType {
	case admissionv1.PatchTypeApplyConfiguration:
		if m.ApplyConfiguration == nil {
			e.Required(apply, "must be specified when patchType is ApplyConfiguration")
		} else {
			e.check(apply.Child("expression"), ApplyConfiguration, m.ApplyConfiguration.Expression)
		}
		if m.JSONPatch != nil {
			e.Forbidden(patch, "must not be specified when patchType is ApplyConfiguration")
		}
	case admissionv1.PatchTypeJSONPatch:
		if m.JSONPatch == nil {
			e.Required(patch, "must be specified when patchType is JSONPatch")
		} else {
			e.check(patch.Child("expression"), JSONPatch, m.JSONPatch.Expression)
		}
		if m.ApplyConfiguration != nil {
			e.Forbidden(apply, "must not be specified when patchType is JSONPatch")
		}
	}
}

// paramKind validates the kind of the parameters of a policy.
func (k *validator) paramKind(at *field.Path, p *admissionv1.ParamKind) {
	version, err := schema.ParseGroupVersion(p.APIVersion)
	switch at := at.Child("apiVersion"); {
	case p.APIVersion == "":
		k.Required(at, "")
	case err != nil:
		k.Invalid(at, p.APIVersion, "%s", err)
	case version.Version == "":
		k.Invalid(at, p.APIVersion, "version must be specified")
	default:
		if version.Group != "" {
			k.InvalidEach(at, version.Group, validation.IsDNS1123Subdomain(version.Group))
		}
		k.InvalidEach(at, version.Version, validation.IsDNS1035Label(version.Version))
	}
	if p.Kind == "" {
		k.Required(at.Child("kind"), "")
		return
	}
	for _, problem := range validation.IsDNS1035Label(strings.ToLower(p.Kind)) {
		k.Invalid(at.Child("kind"), p.Kind, "may have mixed case, but should otherwise match: %s", problem)
	}
}

// binding validates what both kinds of bindings have.
func (k *validator) binding(policy string, params *admissionv1.ParamRef) {
	k.Name(spec.Child("policyName"), policy, func(name string) []string {
		return apivalidation.NameIsDNSSubdomain(name, false)
	})
	if params == nil {
		return
	}
	at := spec.Child("paramRef")
	switch {
	case params.Name != "" && params.Selector != nil:
		k.Forbidden(at.Child("name"), "name and selector are mutually exclusive")
		k.Forbidden(at.Child("selector"), "name and selector are mutually exclusive")
	case params.Name == "" && params.Selector == nil:
		k.Required(at, "one of name or selector must be specified")
	}
	if params.Name != "" {
		k.InvalidEach(at.Child("name"), params.Name, content.IsPathSegmentName(params.Name))
	}
	if params.Selector != nil {
		k.Selector(at.Child("selector"), params.Selector)
	}
	action := at.Child("parameterNotFoundAction")
	if params.ParameterNotFoundAction == nil {
		k.Required(action, "")
		return
	}
	rules.OneOf(k, action, *params.ParameterNotFoundAction, admissionv1.AllowAction, admissionv1.DenyAction)
}

// validationActions validates what follows from a failed validation.
func (k *validator) validationActions(at *field.Path, list []admissionv1.ValidationAction) {
	if len(list) == 0 {
		k.Required(at, "at least one validation action is required")
	}
	seen := map[string]bool{}
	for i, a := range list {
		rules.OneOf(k, at.Index(i), a, admissionv1.Audit, admissionv1.Deny, admissionv1.Warn)
		k.unique(at.Index(i), seen, string(a))
	}
	if seen[string(admissionv1.Deny)] && seen[string(admissionv1.Warn)] {
		k.Invalid(at, list, "must not contain both Deny and Warn (repeating the same validation failure "+
			"information in the API response and headers serves no purpose)")
	}
}

// validatingPolicyStatus validates the status of a policy.
func (k *validator) validatingPolicyStatus(p, _ *admissionv1.ValidatingAdmissionPolicy) {
	if p.Status.TypeChecking != nil {
		for i, w := range p.Status.TypeChecking.ExpressionWarnings {
			at := status.Child("typeChecking", "expressionWarnings").Index(i)
			if w.Warning == "" {
				k.Required(at.Child("warning"), "")
			}
			if strings.TrimSpace(w.FieldRef) == "" {
				k.Required(at.Child("fieldRef"), "")
			}
		}
	}
	k.AddAll(metavalidation.ValidateConditions(p.Status.Conditions, status.Child("conditions")))
}
