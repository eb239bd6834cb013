package nodeapi

import (
	"context"
	"net/http"
	"net/url"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/labels"
)

// PodsRequest selects pods.
type PodsRequest struct {
	Namespace string // empty: all
	Selector  string // label selector; empty: all
}

func (q PodsRequest) values() url.Values {
	return url.Values{"namespace": {q.Namespace}, "labelSelector": {q.Selector}}
}

// podSelector is the parsed form of a PodsRequest.
type podSelector struct {
	namespace string
	selector  labels.Selector
}

func podSelectorOf(r *http.Request) (podSelector, error) {
	q := r.URL.Query()
	sel, err := labels.Parse(q.Get("labelSelector"))
	if err != nil {
		return podSelector{}, apierrors.NewBadRequest("label selector: " + err.Error())
	}
	return podSelector{namespace: q.Get("namespace"), selector: sel}, nil
}

func (c podSelector) matches(p *corev1.Pod) bool {
	return (c.namespace == "" || c.namespace == p.Namespace) && c.selector.Matches(labels.Set(p.Labels))
}

func (s *server) pods(w http.ResponseWriter, r *http.Request) {
	c, err := podSelectorOf(r)
	if err != nil {
		writeError(w, err)
		return
	}
	all, err := s.h.Pods(r.Context())
	if err != nil {
		writeError(w, err)
		return
	}
	// A copy, because the agent may share the list that it returned.
	some := corev1.PodList{ListMeta: all.ListMeta, Items: []corev1.Pod{}}
	some.APIVersion, some.Kind = "v1", "PodList"
	for i := range all.Items {
		if c.matches(&all.Items[i]) {
			some.Items = append(some.Items, typed(all.Items[i]))
		}
	}
	writeJSON(w, http.StatusOK, some)
}

// pod returns one pod. During a replacement two pods can have the same name: then the one that is
// not terminating is returned.
func (s *server) pod(w http.ResponseWriter, r *http.Request) {
	namespace, name := r.PathValue("namespace"), r.PathValue("name")
	all, err := s.h.Pods(r.Context())
	if err != nil {
		writeError(w, err)
		return
	}
	var found *corev1.Pod
	for i := range all.Items {
		p := &all.Items[i]
		if p.Namespace == namespace && p.Name == name && (found == nil || found.DeletionTimestamp != nil) {
			found = p
		}
	}
	if found == nil {
		writeError(w, NotFound(name))
		return
	}
	writeJSON(w, http.StatusOK, typed(*found))
}

// typed returns p with apiVersion and kind, which items of a Go list lack.
func typed(p corev1.Pod) corev1.Pod {
	p.APIVersion, p.Kind = "v1", "Pod"
	return p
}

// Pods returns the pods of this node.
func (c *Client) Pods(ctx context.Context, req PodsRequest) (*corev1.PodList, error) {
	return fetch[*corev1.PodList](ctx, c, request{method: http.MethodGet, path: "/v1/pods", query: req.values()})
}

// Pod returns one pod. The error is NotFound if the pod is not on this node.
func (c *Client) Pod(ctx context.Context, namespace, name string) (*corev1.Pod, error) {
	return fetch[*corev1.Pod](ctx, c, request{method: http.MethodGet, path: podPath(namespace, name, "")})
}
