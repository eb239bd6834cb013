package nodeapi

import (
	"context"
	"encoding/json"
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// maxExec bounds a command with its arguments.
const maxExec = 1 << 20

// ExecRequest asks for a command in a running container.
type ExecRequest struct {
	Namespace string   `json:"-"` // part of the path
	Pod       string   `json:"-"`
	Container string   `json:"container"` // never empty: the asker has chosen
	Command   []string `json:"command"`
	Stdin     bool     `json:"stdin,omitempty"`
	TTY       bool     `json:"tty,omitempty"` // then stderr is part of stdout
}

// execAnswer is where the streams of a command can be had.
type execAnswer struct {
	URL string `json:"url"`
}

func (s *server) exec(w http.ResponseWriter, r *http.Request) {
	req := ExecRequest{Namespace: r.PathValue("namespace"), Pod: r.PathValue("name")}
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxExec)).Decode(&req); err != nil {
		writeError(w, apierrors.NewBadRequest("read the request: "+err.Error()))
		return
	}
	if len(req.Command) == 0 {
		writeError(w, apierrors.NewBadRequest("command: there must be one"))
		return
	}
	u, err := s.h.ExecURL(r.Context(), req)
	reply(w, execAnswer{URL: u}, err)
}

// ExecURL asks for the URL of the runtime's streaming server where the command
// of req can be run once.
func (c *Client) ExecURL(ctx context.Context, req ExecRequest) (string, error) {
	body, err := json.Marshal(req)
	if err != nil {
		return "", err
	}
	a, err := fetch[execAnswer](ctx, c, question{method: http.MethodPost,
		path: podPath(req.Namespace, req.Pod, "/exec"), body: body})
	return a.URL, err
}
