package nodeapi

import (
	"context"
	"encoding/json"
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// AttachRequest asks to attach to the main process of a running container.
type AttachRequest struct {
	Namespace string `json:"-"` // part of the path
	Pod       string `json:"-"`
	Container string `json:"container"` // never empty: chosen by the client
	Stdin     bool   `json:"stdin,omitempty"`
}

// AttachResponse carries the URL of the runtime's streaming server, which is valid for one use.
type AttachResponse struct {
	URL string `json:"url"`
	// TTY reports that the container has a terminal. Its stdout and stderr are then one stream,
	// and stderr must not be requested.
	TTY bool `json:"tty,omitempty"`
}

func (s *server) attach(w http.ResponseWriter, r *http.Request) {
	req := AttachRequest{Namespace: r.PathValue("namespace"), Pod: r.PathValue("name")}
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxExec)).Decode(&req); err != nil {
		writeError(w, apierrors.NewBadRequest("decode request: "+err.Error()))
		return
	}
	a, err := s.h.Attach(r.Context(), req)
	reply(w, a, err)
}

// Attach prepares the streams of a container's main process.
func (c *Client) Attach(ctx context.Context, req AttachRequest) (AttachResponse, error) {
	body, err := json.Marshal(req)
	if err != nil {
		return AttachResponse{}, err
	}
	return fetch[AttachResponse](
		ctx,
		c,
		request{method: http.MethodPost, path: podPath(req.Namespace, req.Pod, "/attach"), body: body},
	)
}
