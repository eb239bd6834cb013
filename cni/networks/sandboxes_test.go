package networks

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"berth/agent/plan"
)

// fakeRuntime is a runtime with one sandbox, s.
type fakeRuntime struct {
	calls []string
	netns error
}

func (f *fakeRuntime) RunSandbox(context.Context, *corev1.Pod, plan.SandboxConfig) (plan.Sandbox, error) {
	f.calls = append(f.calls, "run")
	return plan.Sandbox{ID: "s"}, nil
}

func (f *fakeRuntime) StopSandbox(_ context.Context, id string) error {
	f.calls = append(f.calls, "stop "+id)
	return nil
}

func (f *fakeRuntime) Sandbox(_ context.Context, id string) (plan.Sandbox, error) {
	return plan.Sandbox{ID: id, IPs: []string{"10.0.0.2"}}, nil
}

func (f *fakeRuntime) NetNS(context.Context, string) (string, error) { return "/nowhere", f.netns }

func TestSandboxesAttachBeforeRunningAndDetachBeforeStop(t *testing.T) {
	t.Parallel()
	r, fake := newFixture(t), &fakeRuntime{}
	a := &Sandboxes{Runtime: fake, Networks: r.nets, DefaultNetwork: func() string { return "own" }}
	s, err := a.RunSandbox(t.Context(), podWith("a"), plan.SandboxConfig{})
	if err != nil || len(s.IPs) != 1 {
		t.Fatalf("got %+v, %v", s, err)
	}
	if got := r.calls(); got != "ADD net1 s.json " {
		t.Errorf("got calls %q", got)
	}
	annotated := r.nets.Annotated(&corev1.Pod{ObjectMeta: podWith("a").ObjectMeta}).Annotations[StatusAnnotation]
	if !strings.Contains(annotated, `{"name":"own","interface":"eth0","ips":["10.0.0.2"],"default":true`) {
		t.Errorf("got annotation %s", annotated)
	}
	if err := a.StopSandbox(t.Context(), "s"); err != nil {
		t.Fatal(err)
	}
	if got := r.calls(); got != "DEL net1 s.json " {
		t.Errorf("got calls %q", got)
	}
	if got := strings.Join(fake.calls, ", "); got != "run, stop s" {
		t.Errorf("got runtime calls %s", got)
	}
	pod := podWith("")
	if r.nets.Annotated(pod) != pod {
		t.Error("a pod without networks was annotated")
	}
}

func TestSandboxWithoutAllNetworksIsNotRunning(t *testing.T) {
	t.Parallel()
	r := newFixture(t)
	a := &Sandboxes{Runtime: &fakeRuntime{netns: errors.New("no such sandbox")}, Networks: r.nets}
	if s, err := a.RunSandbox(t.Context(), podWith("a"), plan.SandboxConfig{}); err == nil || s.ID != "" {
		t.Errorf("got %+v, %v", s, err)
	}
	if _, making := r.nets.Attached("u-1", "s"); making {
		t.Error("the sandbox counts as being created")
	}
}

func TestStatusReportIgnoresDeletedPods(t *testing.T) {
	t.Parallel()
	r := newFixture(t)
	r.attachSandbox("s", "a")
	pods := schema.GroupResource{Resource: "pods"}
	for _, row := range []struct {
		err      error
		reported bool
	}{
		{nil, true}, {apierrors.NewNotFound(pods, "p"), true},
		{apierrors.NewConflict(pods, "p", errors.New("other UID")), true}, {errors.New("no connection"), false},
	} {
		err := reportStatus(t.Context(), func(_ context.Context, _ Pod, body []byte) error {
			const want = `{"metadata":{"annotations":{"k8s.v1.cni.cncf.io/network-status":"[]"},"uid":"u-1"}}`
			if string(body) != want {
				t.Errorf("got patch %s", body)
			}
			return row.err
		}, Pod{"ns", "p", "u-1"}, "[]")
		if (err == nil) != row.reported {
			t.Errorf("%v: got error %v", row.err, err)
		}
	}
}

func TestRunReportsSendsEachStatusOnce(t *testing.T) {
	t.Parallel()
	r := newFixture(t)
	r.attachSandbox("s", "a")
	r.restart() // signals a status that was not reported
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	sent := func(context.Context, Pod, []byte) error { cancel(); return nil }
	r.nets.RunReports(ctx, sent, slog.New(slog.DiscardHandler))
	if r.nets.ReportStatuses(func(Pod, string) error { return errors.New("reported again") }) {
		t.Error("the status was reported again")
	}
}

func TestRunChecksReportsFailures(t *testing.T) {
	t.Parallel()
	r := newFixture(t)
	r.attachSandbox("s", "a")
	r.write("CHECK", "", 0o644)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	ready := make(chan struct{})
	close(ready)
	var got []CheckFailure
	r.nets.RunChecks(ctx, ready, func(f CheckFailure) { got = append(got, f); cancel() })
	if len(got) != 1 || got[0].Pod.Name != "s" || !strings.Contains(got[0].Message, "injected") {
		t.Errorf("got %+v", got)
	}
}
