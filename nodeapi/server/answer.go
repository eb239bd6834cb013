package server

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// complain answers with an error as plain text, as the kubelet does: a control
// server puts it into a Status of its own.
func complain(w http.ResponseWriter, err error) {
	code := http.StatusInternalServerError
	var api apierrors.APIStatus // an interface without Error, so errors.AsType does not take it
	switch {
	case errors.As(err, &api):
		if c := int(api.Status().Code); c >= 400 && c < 600 {
			code = c
		}
	case errors.Is(err, context.DeadlineExceeded):
		code = http.StatusGatewayTimeout
	}
	http.Error(w, err.Error(), code)
}

// tell answers with v as JSON, written as it is made: a list of pods is large.
// An error of writing means that the client is gone.
func tell(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(v)
}
