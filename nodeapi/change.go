package nodeapi

import (
	"context"
	"encoding/json"
	"net/http"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// RestartRequest asks to restart containers of a pod, bypassing any back-off.
type RestartRequest struct {
	Namespace  string   `json:"-"` // part of the path
	Pod        string   `json:"-"`
	Containers []string `json:"containers,omitempty"` // empty: all app containers and sidecars
}

func (s *server) restart(w http.ResponseWriter, r *http.Request) {
	req := RestartRequest{Namespace: r.PathValue("namespace"), Pod: r.PathValue("name")}
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxExec)).Decode(&req); err != nil {
		writeError(w, apierrors.NewBadRequest("decode request: "+err.Error()))
		return
	}
	reply(w, struct{}{}, s.h.Restart(r.Context(), req))
}

// Restart requests a restart of containers. It returns when the agent has persisted the request,
// which then survives a restart of the agent.
func (c *Client) Restart(ctx context.Context, req RestartRequest) error {
	body, err := json.Marshal(req)
	if err != nil {
		return err
	}
	_, err = fetch[struct{}](
		ctx,
		c,
		request{method: http.MethodPost, path: podPath(req.Namespace, req.Pod, "/restart"), body: body},
	)
	return err
}

func (s *server) debug(w http.ResponseWriter, r *http.Request) {
	var added corev1.EphemeralContainer
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxExec)).Decode(&added); err != nil {
		writeError(w, apierrors.NewBadRequest("decode request: "+err.Error()))
		return
	}
	reply(w, struct{}{}, s.h.Debug(r.Context(), r.PathValue("namespace"), r.PathValue("name"), added))
}

// Debug adds an ephemeral container to a running pod.
func (c *Client) Debug(ctx context.Context, namespace, pod string, add corev1.EphemeralContainer) error {
	body, err := json.Marshal(add)
	if err != nil {
		return err
	}
	_, err = fetch[struct{}](
		ctx,
		c,
		request{method: http.MethodPost, path: podPath(namespace, pod, "/ephemeralcontainers"), body: body},
	)
	return err
}
