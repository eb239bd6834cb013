package nodeapi

import (
	"context"
	"encoding/json"
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// AttachRequest asks for the streams of a running container's own process.
type AttachRequest struct {
	Namespace string `json:"-"` // part of the path
	Pod       string `json:"-"`
	Container string `json:"container"` // never empty: the asker has chosen
	Stdin     bool   `json:"stdin,omitempty"`
}

// AttachResponse is where the streams of a process can be had, once.
type AttachResponse struct {
	URL string `json:"url"`
	// TTY says that the process has a terminal, as its pod asks for: its outputs
	// are one, and stderr must not be asked for.
	TTY bool `json:"tty,omitempty"`
}

func (s *server) attach(w http.ResponseWriter, r *http.Request) {
	req := AttachRequest{Namespace: r.PathValue("namespace"), Pod: r.PathValue("name")}
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxExec)).Decode(&req); err != nil {
		writeError(w, apierrors.NewBadRequest("read the request: "+err.Error()))
		return
	}
	a, err := s.h.Attach(r.Context(), req)
	reply(w, a, err)
}

// Attach asks for the streams of a container's process.
func (c *Client) Attach(ctx context.Context, req AttachRequest) (AttachResponse, error) {
	body, err := json.Marshal(req)
	if err != nil {
		return AttachResponse{}, err
	}
	return fetch[AttachResponse](ctx, c, question{method: http.MethodPost, path: podPath(req.Namespace, req.Pod, "/attach"), body: body})
}
