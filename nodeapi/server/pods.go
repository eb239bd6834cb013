package server

import (
	"context"
	"net/http"

	corev1 "k8s.io/api/core/v1"
)

// pods tells the pods of the node as it has them now.
func (s *server) pods(w http.ResponseWriter, r *http.Request) { list(w, r, s.h.Pods) }

// running tells what the runtime runs.
func (s *server) running(w http.ResponseWriter, r *http.Request) { list(w, r, s.h.RunningPods) }

func list(w http.ResponseWriter, r *http.Request, ask func(context.Context) (*corev1.PodList, error)) {
	found, err := ask(r.Context())
	if err != nil {
		complain(w, err)
		return
	}
	out := *found // what the agent returned may be shared
	out.APIVersion, out.Kind = "v1", "PodList"
	if out.Items == nil {
		out.Items = []corev1.Pod{}
	}
	tell(w, out)
}
