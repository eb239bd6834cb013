package policyaddresses

import (
	"context"
	"fmt"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"

	"berth/services/policy/addresses"
	v1 "berth/services/policy/addresses/v1"
)

func object(name string) addresses.Change {
	return addresses.Change{Name: name, Object: &v1.NetworkPolicyAddresses{ObjectMeta: metav1.ObjectMeta{Name: name}}}
}

// TestWatchContinues: a watch gets what has changed since a list, once and in order, or the error Expired.
func TestWatchContinues(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := &Publisher{journal: newJournal(1000), synced: make(chan struct{})}
		close(p.synced)
		s := p.Storage()
		p.journal.apply([]addresses.Change{object("a-0"), object("b-0"), {Name: "none"}})
		list, err := s.List(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		all, _ := list.(*v1.NetworkPolicyAddressesList)
		if len(all.Items) != 2 || all.ResourceVersion != "1002" {
			t.Fatalf("got %d objects at %s", len(all.Items), all.ResourceVersion)
		}
		p.journal.apply([]addresses.Change{object("a-0"), {Name: "b-0"}})
		yes := true
		for _, c := range []struct {
			name    string
			options *internalversion.ListOptions
			want    string
		}{
			{"since a list", &internalversion.ListOptions{ResourceVersion: "1002"},
				"MODIFIED a-0 1003, DELETED b-0 1004, ADDED c-0 1005, "},
			{"from the start", &internalversion.ListOptions{}, "ADDED a-0 1003, ADDED c-0 1005, "},
			{"list by watch", &internalversion.ListOptions{SendInitialEvents: &yes, AllowWatchBookmarks: true},
				"ADDED a-0 1003, BOOKMARK  1004, ADDED c-0 1005, "},
		} {
			ctx, cancel := context.WithCancel(t.Context())
			w, err := s.Watch(ctx, c.options)
			if err != nil {
				t.Fatal(err)
			}
			events := make(chan string)
			go func() {
				var got string
				for e := range w.ResultChan() {
					o, _ := e.Object.(*v1.NetworkPolicyAddresses)
					got += fmt.Sprintf("%s %s %s, ", e.Type, o.Name, o.ResourceVersion)
				}
				events <- got
			}()
			synctest.Wait()
			p.journal.apply([]addresses.Change{object("c-0")})
			synctest.Wait()
			w.Stop()
			cancel()
			if got := <-events; got != c.want {
				t.Errorf("%s: got %s want %s", c.name, got, c.want)
			}
			p.journal.version, p.journal.changes = 1004, p.journal.changes[:4] // each row sees the same
			delete(p.journal.objects, "c-0")
		}
		for _, version := range []string{"1", "999", "5000"} {
			_, err := s.Watch(t.Context(), &internalversion.ListOptions{ResourceVersion: version})
			if !apierrors.IsResourceExpired(err) {
				t.Errorf("version %s: got %v, want Expired", version, err)
			}
		}
	})
}

// TestSlowWatchExpires: a watch that is too far behind gets the error Expired.
func TestSlowWatchExpires(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := &Publisher{journal: newJournal(0), synced: make(chan struct{})}
		close(p.synced)
		p.journal.apply([]addresses.Change{object("a-0")})
		w, err := p.Storage().Watch(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		for range journalSize + 1 {
			p.journal.apply([]addresses.Change{object("a-0")})
		}
		if e := <-w.ResultChan(); e.Type != watch.Added {
			t.Errorf("first event is %s", e.Type)
		}
		e, more := <-w.ResultChan()
		status, _ := e.Object.(*metav1.Status)
		if !more || e.Type != watch.Error || status.Reason != metav1.StatusReasonExpired {
			t.Errorf("got %v, want Expired", e)
		}
		if _, more := <-w.ResultChan(); more {
			t.Error("the watch goes on")
		}
	})
}

// TestPublisherFollowsCluster: without policies there are no objects. With one, they follow pods. They go
// some time after it.
func TestPublisherFollowsCluster(t *testing.T) {
	t.Parallel()
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "a", Labels: map[string]string{"app": "a"}},
		Status: corev1.PodStatus{PodIP: "10.0.0.1"}}
	client := fake.NewClientset(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "n"}}, pod)
	factory := informers.NewSharedInformerFactory(client, 0)
	ctx, cancel := context.WithCancel(t.Context())
	p := New(factory, func() { factory.Start(ctx.Done()) }, time.UnixMilli(1))
	ended := make(chan error)
	go func() { ended <- p.Run(ctx) }()
	defer func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		factory.Shutdown()
	}()
	wait := func(want string) {
		t.Helper()
		deadline := time.After(2 * time.Minute)
		for {
			list, err := p.Storage().List(ctx, nil)
			if err != nil {
				t.Fatal(err)
			}
			all, _ := list.(*v1.NetworkPolicyAddressesList)
			got := ""
			for _, o := range all.Items {
				for _, m := range o.Members {
					got += fmt.Sprint(m.Name, m.Addresses)
				}
				got += strconv.Itoa(int(o.Slice))
			}
			if got == want {
				return
			}
			version, err := strconv.ParseUint(all.ResourceVersion, 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			changes, _, advanced, err := p.journal.since(version)
			if err != nil {
				t.Fatal(err)
			}
			if len(changes) > 0 {
				continue
			}
			select {
			case <-advanced:
			case <-deadline:
				t.Fatalf("got %q, want %q", got, want)
			}
		}
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	wait("")
	policies, pods := client.NetworkingV1().NetworkPolicies("n"), client.CoreV1().Pods("n")
	_, err := policies.Create(ctx, &networkingv1.NetworkPolicy{
		ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "p"},
		Spec: networkingv1.NetworkPolicySpec{Ingress: []networkingv1.NetworkPolicyIngressRule{{
			From: []networkingv1.NetworkPolicyPeer{{PodSelector: &metav1.LabelSelector{
				MatchLabels: map[string]string{"app": "a"}}}}}}},
	}, metav1.CreateOptions{})
	must(err)
	wait("a[10.0.0.1]0")
	other := pod.DeepCopy()
	other.Name, other.Status.PodIP = "b", "10.0.0.2"
	_, err = pods.Create(ctx, other, metav1.CreateOptions{})
	must(err)
	wait("a[10.0.0.1]b[10.0.0.2]0")
	must(pods.Delete(ctx, "a", metav1.DeleteOptions{}))
	wait("b[10.0.0.2]0")
	must(policies.Delete(ctx, "p", metav1.DeleteOptions{}))
	wait("")
}
