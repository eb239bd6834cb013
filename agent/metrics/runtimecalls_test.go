package metrics

import (
	"context"
	"errors"
	"net/http/httptest"
	"strings"
	"testing"

	"google.golang.org/grpc"

	"berth/internal/telemetry"
)

func TestRuntimeCallsAreMeasured(t *testing.T) {
	t.Parallel()
	m := telemetry.NewMetrics("n1", telemetry.Build{})
	traces, err := telemetry.NewTraces(t.Context(), telemetry.TraceOptions{})
	if err != nil {
		t.Fatal(err)
	}
	failed := errors.New("no space")
	call := func(method string, want error) {
		invoke := func(context.Context, string, any, any, *grpc.ClientConn, ...grpc.CallOption) error { return want }
		if err := RuntimeCalls(m, traces)(t.Context(), method, nil, nil, nil, invoke); !errors.Is(err, want) {
			t.Errorf("%s: got error %v", method, err)
		}
	}
	call("/runtime.v1.RuntimeService/RunPodSandbox", nil)
	call("/runtime.v1.ImageService/PullImage", failed)
	call("/containerd.services.tasks.v1.Tasks/List", nil)
	w := httptest.NewRecorder()
	m.Handler().ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	for _, want := range []string{
		`kubelet_runtime_operations_total{operation_type="run_podsandbox"} 1`,
		`kubelet_runtime_operations_total{operation_type="pull_image"} 1`,
		`kubelet_runtime_operations_errors_total{operation_type="pull_image"} 1`,
	} {
		if !strings.Contains(w.Body.String(), "\n"+want+"\n") {
			t.Errorf("missing metric %s", want)
		}
	}
	if strings.Contains(w.Body.String(), `operation_type="list"`) {
		t.Error("a call of containerd's own services was counted")
	}
}
