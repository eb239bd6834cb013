package nodeapi

import (
	"context"
	"encoding/json"
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// maxExec limits the size of a request body, including a command with its arguments.
const maxExec = 1 << 20

// ExecRequest asks to run a command in a running container.
type ExecRequest struct {
	Namespace string   `json:"-"` // part of the path
	Pod       string   `json:"-"`
	Container string   `json:"container"` // never empty: chosen by the client
	Command   []string `json:"command"`
	Stdin     bool     `json:"stdin,omitempty"`
	TTY       bool     `json:"tty,omitempty"` // stderr is then part of stdout
}

// execResponse carries the streaming URL of a command.
type execResponse struct {
	URL string `json:"url"`
}

func (s *server) exec(w http.ResponseWriter, r *http.Request) {
	req := ExecRequest{Namespace: r.PathValue("namespace"), Pod: r.PathValue("name")}
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxExec)).Decode(&req); err != nil {
		writeError(w, apierrors.NewBadRequest("decode request: "+err.Error()))
		return
	}
	if len(req.Command) == 0 {
		writeError(w, apierrors.NewBadRequest("command: required"))
		return
	}
	u, err := s.h.ExecURL(r.Context(), req)
	reply(w, execResponse{URL: u}, err)
}

// ExecURL returns a URL of the runtime's streaming server that runs the command of req. The URL is
// valid for one use.
func (c *Client) ExecURL(ctx context.Context, req ExecRequest) (string, error) {
	body, err := json.Marshal(req)
	if err != nil {
		return "", err
	}
	a, err := fetch[execResponse](ctx, c, request{method: http.MethodPost,
		path: podPath(req.Namespace, req.Pod, "/exec"), body: body})
	return a.URL, err
}
