package server

import (
	"context"
	"net/http"

	corev1 "k8s.io/api/core/v1"
)

// pods serves the pods of the node.
func (s *server) pods(w http.ResponseWriter, r *http.Request) { list(w, r, s.h.Pods) }

// running serves the pods that the runtime is running.
func (s *server) running(w http.ResponseWriter, r *http.Request) { list(w, r, s.h.RunningPods) }

func list(w http.ResponseWriter, r *http.Request, ask func(context.Context) (*corev1.PodList, error)) {
	found, err := ask(r.Context())
	if err != nil {
		writeError(w, err)
		return
	}
	out := *found // a copy, because the agent may share the list that it returned
	out.APIVersion, out.Kind = "v1", "PodList"
	if out.Items == nil {
		out.Items = []corev1.Pod{}
	}
	writeJSON(w, out)
}
