package pods

import (
	"errors"
	"net/http"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

func TestNodeViewErrors(t *testing.T) {
	t.Parallel()
	const jsonType, plainType = "application/json", "text/plain; charset=utf-8"
	for _, c := range []struct {
		name              string
		code              int
		contentType, body string
		wantCode          int32 // 0: no error
		wantMessage       string
	}{
		{"the answer of an agent", 200, jsonType, `{"summary": "ready"}`, 0, ""},
		{"a kubelet without the path", 404, plainType, "404 page not found\n", 501,
			`node "n1" does not run berth, or a version that does not explain pods`},
		{"a server that is no kubelet", 200, "text/html", "<html>", 501,
			`node "n1" does not run berth, or a version that does not explain pods`},
		{"a pod that the agent does not know", 404, plainType, "pods \"web\" not found\n", 404,
			`node "n1": pods "web" not found`},
		{"an invalid manifest", 400, plainType, "invalid manifest", 400, `node "n1": invalid manifest`},
		{"a server without permission", 403, plainType, "Forbidden", 503,
			`node "n1" rejects requests of the server: Forbidden`},
		{"disabled debugging handlers", 405, plainType, "Debug endpoints are disabled.", 503,
			`node "n1" rejects requests of the server: Debug endpoints are disabled.`},
		{"an agent that fails", 500, plainType, "broken", 500,
			`Internal error occurred: node "n1": 500 Internal Server Error: broken`},
	} {
		resp := &http.Response{StatusCode: c.code, Status: "500 Internal Server Error",
			Header: http.Header{"Content-Type": {c.contentType}}}
		err := nodeViewError("n1", resp, []byte(c.body))
		var status apierrors.APIStatus
		switch {
		case c.wantCode == 0 && err != nil:
			t.Errorf("%s: got %v", c.name, err)
		case c.wantCode == 0:
		case !errors.As(err, &status):
			t.Errorf("%s: got %v, want a Status", c.name, err)
		case status.Status().Code != c.wantCode || status.Status().Message != c.wantMessage:
			t.Errorf("%s: got %d %q", c.name, status.Status().Code, status.Status().Message)
		}
	}
}

func TestSchedulingMessage(t *testing.T) {
	t.Parallel()
	pod := &corev1.Pod{}
	if got := schedulingMessage(pod); got != "" {
		t.Errorf("without a condition: got %q", got)
	}
	pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse,
		Message: "0/1 nodes are available"}}
	if got := schedulingMessage(pod); got != ": 0/1 nodes are available" {
		t.Errorf("got %q", got)
	}
}
