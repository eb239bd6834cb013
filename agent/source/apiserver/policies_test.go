package apiserver

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"berth/services/policy"
	"berth/services/policy/addresses"
	addressesv1 "berth/services/policy/addresses/v1"
	"berth/services/policy/selection"
)

// testPolicyWatch returns a watch that has listed the addresses of no group.
func testPolicyWatch(t *testing.T) *policyWatch {
	t.Helper()
	w := &policyWatch{
		s:       &Source{ctx: t.Context(), opt: Options{Log: slog.New(slog.DiscardHandler)}},
		store:   policy.NewStoreWithGroups(),
		pending: map[types.NamespacedName]*selection.Policy{}, waiting: make(chan struct{}, 1),
		started: true, listed: [2]bool{true, true},
	}
	w.receiver = addresses.NewReceiver(w.store)
	return w
}

// policyWith returns a policy with a peer.
func policyWith(t *testing.T, app string) *selection.Policy {
	t.Helper()
	p, err := selection.FromNetworkPolicy(&networkingv1.NetworkPolicy{
		ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "p"},
		Spec: networkingv1.NetworkPolicySpec{Ingress: []networkingv1.NetworkPolicyIngressRule{{
			From: []networkingv1.NetworkPolicyPeer{{PodSelector: &metav1.LabelSelector{
				MatchLabels: map[string]string{"app": app}}}}}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// TestPolicyWaitsForAddresses: a policy takes effect when the addresses of its peers are known, and a changed
// one replaces the former then. It does not wait forever.
func TestPolicyWaitsForAddresses(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := testPolicyWatch(t)
		var stop context.CancelFunc
		w.s.ctx, stop = context.WithCancel(t.Context())
		name := types.NamespacedName{Namespace: "n", Name: "p"}
		publish := func(p *selection.Policy) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.receiver.Set(&addressesv1.NetworkPolicyAddresses{
				ObjectMeta: metav1.ObjectMeta{Name: string(p.Groups[0].Key)}, Group: string(p.Groups[0].Key)})
			w.passOn(w.complete)
		}
		a, b, c := policyWith(t, "a"), policyWith(t, "b"), policyWith(t, "c")
		w.set(a)
		if w.store.Policy(name) != nil {
			t.Error("policy is in force without addresses")
		}
		publish(a)
		if w.store.Policy(name) != a {
			t.Error("policy is not in force with its addresses")
		}
		w.replace(map[types.NamespacedName]*selection.Policy{name: b})
		if w.store.Policy(name) != a {
			t.Error("the former policy is not in force")
		}
		publish(b)
		if w.store.Policy(name) != b {
			t.Error("the changed policy is not in force")
		}
		ended := make(chan struct{})
		go func() { defer close(ended); w.endWaits() }()
		w.set(c)
		time.Sleep(publishTimeout)
		synctest.Wait()
		if w.store.Policy(name) != c {
			t.Error("the policy waits longer than the limit")
		}
		w.remove(name)
		if w.store.PolicyNumber() != 0 {
			t.Error("a removed policy is in force")
		}
		stop()
		<-ended
	})
}

// TestMissingPermissionEndsWait: a pod does not wait for policies that the node may not read.
func TestMissingPermissionEndsWait(t *testing.T) {
	t.Parallel()
	w := testPolicyWatch(t)
	enforcer := policy.New(policy.Options{Store: w.store, Log: slog.New(slog.DiscardHandler)})
	w.store.SetLocalPod(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "uid"}},
		[]netip.Addr{netip.MustParseAddr("10.0.0.1")})
	for range finalFailures {
		w.recordError(apierrors.NewForbidden(schema.GroupResource{Resource: "networkpolicies"}, "",
			errors.New("no role")))
	}
	err := enforcer.WaitInstalled(t.Context(), "uid")
	if err == nil || !strings.Contains(err.Error(), "not permitted") {
		t.Errorf("got %v, want an error about the permission", err)
	}
	w.replace(nil)
	w.store.ReplaceGroups(nil)
	if err := enforcer.WaitInstalled(t.Context(), "uid"); err != nil {
		t.Errorf("without policies: %v", err)
	}
}
