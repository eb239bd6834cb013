package server

import (
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// CheckpointRequest requests a checkpoint of a running container.
type CheckpointRequest struct {
	PodRef
	Container string
	Timeout   time.Duration // 0: that of the runtime
}

// checkpoint creates a checkpoint archive of a container and responds with its path.
func (s *server) checkpoint(w http.ResponseWriter, r *http.Request) {
	req := CheckpointRequest{PodRef: podOf(r), Container: r.PathValue("container")}
	if text := r.URL.Query().Get("timeout"); text != "" {
		seconds, err := strconv.ParseUint(text, 10, 31)
		if err != nil {
			writeError(w, apierrors.NewBadRequest(fmt.Sprintf("timeout %q: must be a number of seconds", text)))
			return
		}
		req.Timeout = time.Duration(seconds) * time.Second
	}
	archive, err := s.h.Checkpoint(r.Context(), req)
	if err != nil {
		writeError(w, fmt.Errorf("checkpointing of %s/%s/%s failed (%w)", req.Namespace, req.Name, req.Container, err))
		return
	}
	writeJSON(w, map[string][]string{"items": {archive}})
}

// CheckpointName returns upstream's name of the archive of a checkpoint.
func CheckpointName(namespace, pod, container string, now time.Time) string {
	return fmt.Sprintf("checkpoint-%s_%s-%s-%s.tar", pod, namespace, container, now.Format(time.RFC3339))
}

// maxText limits the body of a request with a short text.
const maxText = 1 << 10

// readText reads the body of a request.
func readText(r *http.Request) (string, error) {
	text, err := io.ReadAll(io.LimitReader(r.Body, maxText))
	return strings.TrimSpace(string(text)), err
}
