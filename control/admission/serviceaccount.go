package admission

import (
	"context"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/storage/names"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"

	"berth/control/authz"
	"berth/control/tokens"
)

const (
	tokenVolume            = "kube-api-access"                               // prefix of the volume name
	tokenPath              = "/var/run/secrets/kubernetes.io/serviceaccount" //nolint:gosec // a mount path
	tokenExpirationSeconds = int64(tokens.InjectedTTL / time.Second)
	rootCA                 = "kube-root-ca.crt"
	serviceAccountTimeout  = time.Second // the controller creates the account of a new namespace asynchronously
)

type serviceAccounts struct {
	*admission.Handler

	accounts corelisters.ServiceAccountLister
	client   kubernetes.Interface
}

func newServiceAccounts(c Config) (admission.Interface, error) {
	return &serviceAccounts{admission.NewHandler(admission.Create), c.Informers.Core().V1().ServiceAccounts().Lister(),
		c.Client}, nil
}

// Admit sets the service account of a pod, the account's image pull secrets, and the volume with
// its token.
func (s *serviceAccounts) Admit(ctx context.Context, a admission.Attributes, o admission.ObjectInterfaces) error {
	pod, ok := podOf(a)
	if !ok || isMirror(pod) {
		return nil
	}
	if pod.Spec.ServiceAccountName == "" {
		pod.Spec.ServiceAccountName = pod.Spec.DeprecatedServiceAccount
	}
	if pod.Spec.ServiceAccountName == "" {
		pod.Spec.ServiceAccountName = "default"
	}
	pod.Spec.DeprecatedServiceAccount = pod.Spec.ServiceAccountName
	account, err := s.account(ctx, a)
	if err != nil {
		return err
	}
	if shouldAutomount(pod, account) {
		mountToken(pod)
	}
	if len(pod.Spec.ImagePullSecrets) == 0 {
		pod.Spec.ImagePullSecrets = append(pod.Spec.ImagePullSecrets, account.ImagePullSecrets...)
	}
	return nil
}

// Validate rejects pods whose service account does not exist, and mirror pods that refer to API
// objects.
func (s *serviceAccounts) Validate(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	pod, ok := podOf(a)
	if !ok {
		return nil
	}
	if !isMirror(pod) {
		_, err := s.account(ctx, a)
		return err
	}
	if pod.Spec.ServiceAccountName != "" {
		return admission.NewForbidden(a, fmt.Errorf("a mirror pod may not reference service accounts"))
	}
	if what := referencedResource(pod); what != "" {
		return admission.NewForbidden(a, fmt.Errorf("a mirror pod may not reference %s", what))
	}
	return nil
}

// referencedResource returns a resource that the pod refers to, other than its service account, or
// "".
func referencedResource(pod *corev1.Pod) (resource string) {
	authz.VisitRefs(pod, func(kind, name string) {
		if name != "" && kind != "serviceaccounts" && resource == "" {
			resource = kind
		}
	})
	for i := range pod.Spec.Volumes {
		p := pod.Spec.Volumes[i].Projected
		if p == nil || resource != "" {
			continue
		}
		for j := range p.Sources {
			switch source := &p.Sources[j]; {
			case source.ServiceAccountToken != nil:
				resource = "ServiceAccountToken volume projections"
			case source.ClusterTrustBundle != nil:
				resource = "clustertrustbundles"
			case source.PodCertificate != nil:
				resource = "podcertificates"
			}
		}
	}
	return resource
}

func isMirror(pod *corev1.Pod) bool { return pod.Annotations[corev1.MirrorPodAnnotationKey] != "" }

// account returns the service account from the cache or the API server. It waits briefly for the
// default account of a new namespace.
func (s *serviceAccounts) account(ctx context.Context,
	a admission.Attributes) (account *corev1.ServiceAccount, err error) {
	pod, _ := podOf(a)
	namespace, name := a.GetNamespace(), pod.Spec.ServiceAccountName
	if account, err = s.accounts.ServiceAccounts(namespace).Get(name); err == nil {
		return account, nil
	}
	ctx, cancel := context.WithTimeout(ctx, serviceAccountTimeout)
	defer cancel()
	_ = wait.PollUntilContextCancel(ctx, 50*time.Millisecond, true, func(ctx context.Context) (bool, error) {
		got, getErr := s.client.CoreV1().ServiceAccounts(namespace).Get(ctx, name, metav1.GetOptions{})
		if getErr == nil {
			account, err = got, nil
			return true, nil
		}
		if ctx.Err() == nil {
			err = getErr
		}
		// No controller creates any other account.
		return !apierrors.IsNotFound(getErr) || name != "default", nil
	})
	if err != nil {
		return nil, admission.NewForbidden(a, fmt.Errorf("error looking up service account %s/%s: %w", namespace, name,
			err))
	}
	return account, nil
}

func shouldAutomount(pod *corev1.Pod, account *corev1.ServiceAccount) bool {
	if pod.Spec.AutomountServiceAccountToken != nil {
		return *pod.Spec.AutomountServiceAccountToken
	}
	return account.AutomountServiceAccountToken == nil || *account.AutomountServiceAccountToken
}

// mountToken mounts the token volume in every container without a mount at its path, and adds the
// volume if it is used.
func mountToken(pod *corev1.Pod) {
	name, known := "", false
	for i := range pod.Spec.Volumes {
		if strings.HasPrefix(pod.Spec.Volumes[i].Name, tokenVolume+"-") {
			name, known = pod.Spec.Volumes[i].Name, true
			break
		}
	}
	if !known {
		name = names.SimpleNameGenerator.GenerateName(tokenVolume + "-")
	}
	mounted := false
	for _, list := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			if mountsAt(&list[i], tokenPath) {
				continue
			}
			list[i].VolumeMounts = append(list[i].VolumeMounts, corev1.VolumeMount{Name: name, ReadOnly: true,
				MountPath: tokenPath})
			mounted = true
		}
	}
	if mounted && !known {
		pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{
			Projected: tokenVolumeSource()}})
	}
}

func mountsAt(c *corev1.Container, path string) bool {
	for i := range c.VolumeMounts {
		if c.VolumeMounts[i].MountPath == path {
			return true
		}
	}
	return false
}

func tokenVolumeSource() *corev1.ProjectedVolumeSource {
	mode, seconds := corev1.ProjectedVolumeSourceDefaultMode, tokenExpirationSeconds
	return &corev1.ProjectedVolumeSource{DefaultMode: &mode, Sources: []corev1.VolumeProjection{
		{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{ExpirationSeconds: &seconds, Path: "token"}},
		{ConfigMap: &corev1.ConfigMapProjection{
			LocalObjectReference: corev1.LocalObjectReference{Name: rootCA}, Items: []corev1.KeyToPath{{Key: "ca.crt",
				Path: "ca.crt"}},
		}},
		{DownwardAPI: &corev1.DownwardAPIProjection{Items: []corev1.DownwardAPIVolumeFile{
			{Path: "namespace", FieldRef: &corev1.ObjectFieldSelector{APIVersion: "v1",
				FieldPath: "metadata.namespace"}},
		}}},
	}}
}
