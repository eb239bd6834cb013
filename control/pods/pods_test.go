package pods

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestMergeMatchKeys(t *testing.T) {
	t.Parallel()
	term := corev1.PodAffinityTerm{
		LabelSelector:     &metav1.LabelSelector{},
		MatchLabelKeys:    []string{"a", "missing"},
		MismatchLabelKeys: []string{"b"},
	}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"a": "1", "b": "2"}},
		Spec: corev1.PodSpec{
			Affinity: &corev1.Affinity{
				PodAntiAffinity: &corev1.PodAntiAffinity{
					RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{term},
				},
			},
			TopologySpreadConstraints: []corev1.TopologySpreadConstraint{
				{LabelSelector: &metav1.LabelSelector{}, MatchLabelKeys: []string{"a"}},
				{MatchLabelKeys: []string{"a"}},
			},
		}}
	mergeMatchKeys(pod)
	got := pod.Spec.Affinity.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution[0].LabelSelector
	if text := metav1.FormatLabelSelector(got); text != "a in (1),b notin (2)" {
		t.Errorf("got %s", text)
	}
	if text := metav1.FormatLabelSelector(pod.Spec.TopologySpreadConstraints[0].LabelSelector); text != "a in (1)" {
		t.Errorf("got %s", text)
	}
}

func TestPodStrategyCheckGracefulDelete(t *testing.T) {
	t.Parallel()
	number := func(n int64) *int64 { return &n }
	for _, c := range []struct {
		name      string
		pod       corev1.Pod
		requested *int64
		want      int64
	}{
		{"unbound pod", corev1.Pod{}, number(30), 0},
		{"terminated pod", corev1.Pod{Spec: corev1.PodSpec{NodeName: "n"},
			Status: corev1.PodStatus{Phase: corev1.PodFailed}}, nil, 0},
		{"period of the request",
			corev1.Pod{Spec: corev1.PodSpec{NodeName: "n", TerminationGracePeriodSeconds: number(5)}},
			number(7), 7},
		{"period of the pod", corev1.Pod{Spec: corev1.PodSpec{NodeName: "n", TerminationGracePeriodSeconds: number(5)}},
			nil, 5},
		{"default period", corev1.Pod{Spec: corev1.PodSpec{NodeName: "n"}}, nil, 30},
		{"negative period", corev1.Pod{Spec: corev1.PodSpec{NodeName: "n", TerminationGracePeriodSeconds: number(-1)}},
			nil,
			1},
	} {
		options := &metav1.DeleteOptions{GracePeriodSeconds: c.requested}
		if !(podStrategy{}).CheckGracefulDelete(t.Context(), &c.pod, options) || *options.GracePeriodSeconds != c.want {
			t.Errorf("%s: got %d, want %d", c.name, *options.GracePeriodSeconds, c.want)
		}
	}
}

func TestKubeletURL(t *testing.T) {
	t.Parallel()
	n := &corev1.Node{Status: corev1.NodeStatus{Addresses: []corev1.NodeAddress{
		{
			Type:    corev1.NodeExternalIP,
			Address: "1.2.3.4",
		}, {Type: corev1.NodeHostName, Address: "n"}, {Type: corev1.NodeInternalIP, Address: "fd00::1"}}}}
	if u, err := KubeletURL(n); err != nil || u.String() != "https://[fd00::1]:10250" {
		t.Errorf("got %v, %v", u, err)
	}
	n.Status.DaemonEndpoints.KubeletEndpoint.Port = 20250
	n.Status.Addresses = n.Status.Addresses[:2]
	if u, err := KubeletURL(n); err != nil || u.String() != "https://n:20250" {
		t.Errorf("got %v, %v", u, err)
	}
	n.Status.Addresses = nil
	if _, err := KubeletURL(n); !apierrors.IsServiceUnavailable(err) {
		t.Errorf("got %v", err)
	}
}

func TestContainerSelection(t *testing.T) {
	t.Parallel()
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "p"},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "a"}},
			InitContainers: []corev1.Container{{Name: "i"}},
			EphemeralContainers: []corev1.EphemeralContainer{
				{EphemeralContainerCommon: corev1.EphemeralContainerCommon{Name: "e"}},
			}},
	}
	for requested, want := range map[string]string{"": "a", "i": "i", "e": "e"} {
		if got, err := container(pod, requested); got != want || err != nil {
			t.Errorf("%q: got %q, %v", requested, got, err)
		}
	}
	pod.Spec.Containers = append(pod.Spec.Containers, corev1.Container{Name: "b"})
	want := "a container name must be specified for pod p, choose one of: [a b] or one of the init containers: [i] " +
		"or one of the ephemeral containers: [e]"
	if _, err := container(pod, ""); err == nil || err.Error() != want {
		t.Errorf("got %v", err)
	}
}

func TestCheckAndDecrement(t *testing.T) {
	t.Parallel()
	b := &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Name: "b", Generation: 2},
		Status:     policyv1.PodDisruptionBudgetStatus{ObservedGeneration: 1, DisruptionsAllowed: 1},
	}
	if err := checkAndDecrement(b, "p", false); !apierrors.IsTooManyRequests(err) ||
		!apierrors.HasStatusCause(err, policyv1.DisruptionBudgetCause) {
		t.Errorf("budget not processed yet: %v", err)
	}
	b.Status.ObservedGeneration = 2
	if err := checkAndDecrement(b, "p", true); err != nil || b.Status.DisruptionsAllowed != 1 {
		t.Errorf("a dry run decremented the budget: %v", err)
	}
	if err := checkAndDecrement(b, "p", false); err != nil || b.Status.DisruptionsAllowed != 0 ||
		len(b.Status.DisruptedPods) != 1 ||
		b.Status.Conditions[0].Reason != policyv1.InsufficientPodsReason {
		t.Errorf("got %+v, %v", b.Status, err)
	}
	b.Status.DesiredHealthy, b.Status.CurrentHealthy = 2, 1
	err := checkAndDecrement(b, "q", false)
	if !apierrors.IsTooManyRequests(err) {
		t.Fatalf("got %v", err)
	}
	status := err.(apierrors.APIStatus).Status()
	if got := status.Details.Causes[0].Message; got != "The disruption budget b needs 2 healthy pods and has "+
		"1 currently" {
		t.Errorf("got %s", got)
	}
	b.Status.DisruptionsAllowed = -1
	if err := checkAndDecrement(b, "q", false); !apierrors.IsForbidden(err) {
		t.Errorf("got %v", err)
	}
}

func TestValidateProxyAddress(t *testing.T) {
	t.Parallel()
	for ip, want := range map[string]bool{"10.0.0.1": true, "fd00::1": true, "127.0.0.1": false,
		"169.254.169.254": false, "::1": false, "": false, "0.0.0.0": false, "224.0.0.1": false,
		"::ffff:127.0.0.1": false} {
		if got := validateProxyAddress(ip) == nil; got != want {
			t.Errorf("%s: got %v", ip, got)
		}
	}
}
