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
	tokenVolume            = "kube-api-access"                               // the prefix of its name
	tokenPath              = "/var/run/secrets/kubernetes.io/serviceaccount" //nolint:gosec // where it is mounted, not what it is
	tokenExpirationSeconds = int64(tokens.InjectedTTL / time.Second)
	rootCA                 = "kube-root-ca.crt"
	serviceAccountTimeout  = time.Second // a new namespace's account is made a moment after it
)

type serviceAccounts struct {
	*admission.Handler

	accounts corelisters.ServiceAccountLister
	client   kubernetes.Interface
}

func newServiceAccounts(c Config) (admission.Interface, error) {
	return &serviceAccounts{admission.NewHandler(admission.Create), c.Informers.Core().V1().ServiceAccounts().Lister(), c.Client}, nil
}

// Admit gives a pod its service account, the account's pull secrets and the
// volume with its token.
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

// Validate refuses mirror pods that take what the server has, and pods whose
// account is not there.
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

// referencedResource answers what of the server a pod refers to, "" for nothing.
func referencedResource(pod *corev1.Pod) (what string) {
	authz.VisitRefs(pod, func(resource, name string) {
		if name != "" && resource != "serviceaccounts" && what == "" {
			what = resource
		}
	})
	for i := range pod.Spec.Volumes {
		p := pod.Spec.Volumes[i].Projected
		if p == nil || what != "" {
			continue
		}
		for j := range p.Sources {
			if p.Sources[j].ServiceAccountToken != nil {
				what = "ServiceAccountToken volume projections"
			}
		}
	}
	return what
}

func isMirror(pod *corev1.Pod) bool { return pod.Annotations[corev1.MirrorPodAnnotationKey] != "" }

// account looks in the cache, then in the store, and waits a moment for an
// account that is about to be made.
func (s *serviceAccounts) account(ctx context.Context, a admission.Attributes) (account *corev1.ServiceAccount, err error) {
	pod, _ := podOf(a)
	namespace, name := a.GetNamespace(), pod.Spec.ServiceAccountName
	if account, err = s.accounts.ServiceAccounts(namespace).Get(name); err == nil {
		return account, nil
	}
	ctx, stop := context.WithTimeout(ctx, serviceAccountTimeout)
	defer stop()
	_ = wait.PollUntilContextCancel(ctx, 50*time.Millisecond, true, func(ctx context.Context) (bool, error) {
		got, getErr := s.client.CoreV1().ServiceAccounts(namespace).Get(ctx, name, metav1.GetOptions{})
		if getErr == nil {
			account, err = got, nil
			return true, nil
		}
		if ctx.Err() == nil {
			err = getErr
		}
		// Only the account that a controller makes is worth a wait.
		return !apierrors.IsNotFound(getErr) || name != "default", nil
	})
	if err != nil {
		return nil, admission.NewForbidden(a, fmt.Errorf("error looking up service account %s/%s: %w", namespace, name, err))
	}
	return account, nil
}

func shouldAutomount(pod *corev1.Pod, account *corev1.ServiceAccount) bool {
	if pod.Spec.AutomountServiceAccountToken != nil {
		return *pod.Spec.AutomountServiceAccountToken
	}
	return account.AutomountServiceAccountToken == nil || *account.AutomountServiceAccountToken
}

// mountToken mounts the token's volume in each container that has nothing at its
// path, and adds the volume if one does.
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
			list[i].VolumeMounts = append(list[i].VolumeMounts, corev1.VolumeMount{Name: name, ReadOnly: true, MountPath: tokenPath})
			mounted = true
		}
	}
	if mounted && !known {
		pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{Projected: tokenVolumeSource()}})
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
			LocalObjectReference: corev1.LocalObjectReference{Name: rootCA}, Items: []corev1.KeyToPath{{Key: "ca.crt", Path: "ca.crt"}},
		}},
		{DownwardAPI: &corev1.DownwardAPIProjection{Items: []corev1.DownwardAPIVolumeFile{
			{Path: "namespace", FieldRef: &corev1.ObjectFieldSelector{APIVersion: "v1", FieldPath: "metadata.namespace"}},
		}}},
	}}
}
