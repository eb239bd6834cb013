package admission

import (
	"context"
	"errors"

	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/warning"
	podsecurityadmission "k8s.io/pod-security-admission/admission"
	"k8s.io/pod-security-admission/admission/api/load"
	"k8s.io/pod-security-admission/admission/api/validation"
	podsecurityapi "k8s.io/pod-security-admission/api"
	"k8s.io/pod-security-admission/metrics"
	"k8s.io/pod-security-admission/policy"
)

// podSecurity enforces the Pod Security Standards selected by the pod-security.kubernetes.io labels
// of a namespace, with upstream's library. Its configuration, of kind PodSecurityConfiguration, has the defaults for
// namespaces without labels and the exemptions.
type podSecurity struct {
	*admission.Handler

	library *podsecurityadmission.Admission
}

func newPodSecurity(c Config) (admission.Interface, error) {
	config, err := load.LoadFromData(c.Configurations["PodSecurity"])
	if err != nil {
		return nil, err
	}
	if err := validation.ValidatePodSecurityConfiguration(config).ToAggregate(); err != nil {
		return nil, err
	}
	evaluator, err := policy.NewEvaluator(policy.DefaultChecks(), nil)
	if err != nil {
		return nil, err
	}
	core := c.Informers.Core().V1()
	library := &podsecurityadmission.Admission{
		Configuration: config, Evaluator: evaluator,
		Metrics:          metrics.NewPrometheusRecorder(podsecurityapi.GetAPIVersion()),
		PodSpecExtractor: podsecurityadmission.DefaultPodSpecExtractor{},
		NamespaceGetter:  podsecurityadmission.NamespaceGetterFromListerAndClient(core.Namespaces().Lister(), c.Client),
		PodLister:        podsecurityadmission.PodListerFromInformer(core.Pods().Lister()),
	}
	if err := library.CompleteConfiguration(); err != nil {
		return nil, err
	}
	return &podSecurity{admission.NewHandler(admission.Create, admission.Update), library},
		library.ValidateConfiguration()
}

// Validate checks namespaces, pods, and objects with a pod template.
func (p *podSecurity) Validate(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	gr := a.GetResource().GroupResource()
	if gr != corev1.Resource("namespaces") && gr != corev1.Resource("pods") &&
		!p.library.PodSpecExtractor.HasPodSpec(gr) {
		return nil
	}
	response := p.library.Validate(ctx, &podsecurityapi.AttributesRecord{
		Name: a.GetName(), Namespace: a.GetNamespace(), Kind: a.GetKind(), Resource: a.GetResource(),
		Subresource: a.GetSubresource(),
		Operation:   admissionv1.Operation(a.GetOperation()), Object: a.GetObject(), OldObject: a.GetOldObject(),
		Username: a.GetUserInfo().GetName(),
	})
	for _, w := range response.Warnings {
		warning.AddWarning(ctx, "", w)
	}
	for k, v := range response.AuditAnnotations {
		audit.AddAuditAnnotation(ctx, "pod-security.kubernetes.io/"+k, v)
	}
	if response.Allowed {
		return nil
	}
	forbidden := apierrors.NewForbidden(gr, a.GetName(), errors.New("not allowed by PodSecurity"))
	if r := response.Result; r != nil {
		if r.Message != "" {
			forbidden.ErrStatus.Message = r.Message
		}
		if r.Reason != "" {
			forbidden.ErrStatus.Reason = r.Reason
		}
		if r.Code != 0 {
			forbidden.ErrStatus.Code = r.Code
		}
		if r.Details != nil {
			forbidden.ErrStatus.Details = r.Details
		}
	}
	return forbidden
}
