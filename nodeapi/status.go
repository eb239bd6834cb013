package nodeapi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// maxStatus limits how much of an error response a client reads.
const maxStatus = 64 << 10

// NotFound is the error for a pod that is not on this node.
func NotFound(name string) error {
	return apierrors.NewNotFound(schema.GroupResource{Resource: "pods"}, name)
}

// statusOf converts an error to its wire format.
func statusOf(err error) metav1.Status {
	var st metav1.Status
	var api apierrors.APIStatus // the interface has no Error method, so errors.AsType does not accept it
	if errors.As(err, &api) {
		st = api.Status()
		st.Message = err.Error() // includes the context of wrapped errors
	} else {
		st = metav1.Status{
			Code: http.StatusInternalServerError, Reason: metav1.StatusReasonInternalError, Message: err.Error(),
		}
		if errors.Is(err, context.DeadlineExceeded) {
			st.Code, st.Reason = http.StatusGatewayTimeout, metav1.StatusReasonTimeout
		}
	}
	st.TypeMeta = metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}
	st.Status = metav1.StatusFailure
	if st.Code < 400 || st.Code > 599 {
		st.Code = http.StatusInternalServerError
	}
	return st
}

func writeError(w http.ResponseWriter, err error) {
	st := statusOf(err)
	writeJSON(w, int(st.Code), st)
}

// writeJSON sends v. A write error means that the client is disconnected, so it is ignored.
func writeJSON(w http.ResponseWriter, code int, v any) {
	body, err := json.Marshal(v)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_, _ = w.Write(append(body, '\n'))
}

// reply sends v, or err if it is not nil.
func reply(w http.ResponseWriter, v any, err error) {
	if err != nil {
		writeError(w, err)
		return
	}
	writeJSON(w, http.StatusOK, v)
}

// readError converts an error response to the error that it carries.
func readError(resp *http.Response) error {
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxStatus))
	if err != nil {
		return fmt.Errorf("read response of the agent: %w", err)
	}
	var st metav1.Status
	if json.Unmarshal(body, &st) == nil && st.Kind == "Status" {
		return &apierrors.StatusError{ErrStatus: st}
	}
	return fmt.Errorf("response of the agent: %s: %s", resp.Status, strings.TrimSpace(string(body)))
}

func notImplemented(w http.ResponseWriter, r *http.Request) {
	writeError(w, &apierrors.StatusError{ErrStatus: metav1.Status{
		Code: http.StatusNotImplemented, Reason: metav1.StatusReasonMethodNotAllowed,
		Message: "this agent does not implement " + r.URL.Path,
	}})
}

func unknownPath(w http.ResponseWriter, r *http.Request) {
	writeError(w, &apierrors.StatusError{ErrStatus: metav1.Status{
		Code: http.StatusNotFound, Reason: metav1.StatusReasonNotFound,
		Message: "unknown endpoint " + r.Method + " " + r.URL.Path + ": the command may be newer than the agent",
	}})
}
