package registration

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"path"
	"strings"
	"sync"
	"testing"
	"time"

	coordv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"

	"berth/internal/apiclient"
)

// server is an API server with one Node and one lease that counts its requests.
type server struct {
	t    *testing.T
	http *httptest.Server

	mu             sync.Mutex
	version        int
	node           *corev1.Node
	lease          *coordv1.Lease
	requests       map[string]int                 // by verb and resource: "PATCH status"
	changed        chan struct{}                  // closed at the next change
	hang           chan struct{}                  // if not nil, responses object the Node wait for it
	forbiddenLabel string                         // label with which no Node can be created
	rejections     map[string]metav1.StatusReason // rejections by request, as in requests
}

const storageFull metav1.StatusReason = "InsufficientStorage" // the server's store is full

func newServer(t *testing.T) *server {
	s := &server{t: t, requests: map[string]int{}, changed: make(chan struct{})}
	s.http = httptest.NewServer(s)
	t.Cleanup(func() { s.http.CloseClientConnections(); s.http.Close() })
	return s
}

func (s *server) client() *apiclient.Client {
	c, err := apiclient.New(apiclient.Options{Config: &rest.Config{Host: s.http.URL}, UserAgent: "test"})
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(c.Close)
	return c
}

// set changes the Node like another client. Nil deletes it.
func (s *server) set(n *corev1.Node) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.put(n)
}

func (s *server) put(n *corev1.Node) {
	s.version++
	if n != nil {
		n = n.DeepCopy()
		n.ResourceVersion = fmt.Sprint(s.version)
		if n.UID == "" {
			n.UID = types.UID(fmt.Sprint("uid-", s.version))
		}
	}
	s.node = n
	close(s.changed)
	s.changed = make(chan struct{})
}

// get returns the Node, or nil.
func (s *server) get() *corev1.Node {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.node.DeepCopy()
}

func (s *server) count(what string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.requests[what]
}

// setLeaseRenewed sets the renewal time of the lease, like another machine.
func (s *server) setLeaseRenewed(at time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lease = &coordv1.Lease{Spec: coordv1.LeaseSpec{RenewTime: &metav1.MicroTime{Time: at}}}
}

func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	watching := r.URL.Query().Get("watch") != ""
	s.mu.Lock()
	s.requests[r.Method+" "+path.Base(r.URL.Path)]++
	hang := s.hang
	s.mu.Unlock()
	switch {
	case strings.Contains(r.URL.Path, "/leases"):
		s.respond(w, r, body, s.leases)
	case watching && r.URL.Query().Get("sendInitialEvents") != "":
		writeStatus(w, http.StatusBadRequest, metav1.StatusReasonBadRequest)
	case watching:
		s.watch(w, r)
	default:
		if hang != nil {
			select {
			case <-hang:
			case <-r.Context().Done():
				return
			}
		}
		s.respond(w, r, body, s.nodes)
	}
}

func (s *server) respond(
	w http.ResponseWriter,
	r *http.Request,
	body []byte,
	do func(r *http.Request, body []byte) (any, metav1.StatusReason),
) {
	s.mu.Lock()
	defer s.mu.Unlock()
	reason := s.rejections[r.Method+" "+path.Base(r.URL.Path)]
	var out any
	if reason == "" {
		out, reason = do(r, body)
	}
	if reason != "" {
		writeStatus(w, map[metav1.StatusReason]int{
			metav1.StatusReasonNotFound: 404, metav1.StatusReasonForbidden: 403, metav1.StatusReasonAlreadyExists: 409,
			storageFull: 507,
		}[reason], reason)
		return
	}
	w.Header().Set("Content-Type", runtime.ContentTypeJSON)
	_ = json.NewEncoder(w).Encode(out)
}

func writeStatus(w http.ResponseWriter, code int, reason metav1.StatusReason) {
	w.Header().Set("Content-Type", runtime.ContentTypeJSON)
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(metav1.Status{
		TypeMeta: metav1.TypeMeta{
			APIVersion: "v1",
			Kind:       "Status",
		},
		Status: metav1.StatusFailure,
		Reason: reason,
		Code:   int32(code),
	})
}

func (s *server) leases(r *http.Request, body []byte) (any, metav1.StatusReason) {
	switch {
	case r.Method == http.MethodPost:
		s.lease = decoded[*coordv1.Lease](s.t, body)
	case s.lease == nil:
		return nil, metav1.StatusReasonNotFound
	case r.Method == http.MethodPatch:
		if err := json.Unmarshal(body, s.lease); err != nil {
			s.t.Error(err)
		}
	}
	s.lease.APIVersion, s.lease.Kind = "coordination.k8s.io/v1", "Lease"
	return s.lease, ""
}

func (s *server) nodes(r *http.Request, body []byte) (any, metav1.StatusReason) {
	if r.Method == http.MethodGet && path.Base(r.URL.Path) == "nodes" {
		list := &corev1.NodeList{
			TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "NodeList"},
			ListMeta: metav1.ListMeta{ResourceVersion: fmt.Sprint(s.version)},
		}
		if s.node != nil {
			list.Items = append(list.Items, *s.node)
		}
		return list, ""
	}
	switch {
	case r.Method == http.MethodPost && s.node != nil:
		return nil, metav1.StatusReasonAlreadyExists
	case r.Method == http.MethodPost:
		n := decoded[*corev1.Node](s.t, body)
		if _, has := n.Labels[s.forbiddenLabel]; has {
			return nil, metav1.StatusReasonForbidden
		}
		s.put(n)
	case s.node == nil:
		return nil, metav1.StatusReasonNotFound
	case r.Method == http.MethodPatch:
		was, err := json.Marshal(s.node)
		if err != nil {
			s.t.Error(err)
		}
		text, err := strategicpatch.StrategicMergePatch(was, body, corev1.Node{})
		next := &corev1.Node{}
		if err == nil {
			err = json.Unmarshal(text, next)
		}
		if err != nil {
			s.t.Error(err)
		}
		s.put(next)
	}
	out := s.node.DeepCopy()
	out.APIVersion, out.Kind = "v1", "Node"
	return out, ""
}

// watch sends every change of the Node until the client disconnects.
func (s *server) watch(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", runtime.ContentTypeJSON)
	w.WriteHeader(http.StatusOK)
	var has *corev1.Node
	for first := true; ; first = false {
		s.mu.Lock()
		now, changed := s.node.DeepCopy(), s.changed
		if first {
			s.requests["WATCH"]++ // all later changes are sent
		}
		s.mu.Unlock()
		event, object := "MODIFIED", now
		switch {
		case now == nil && has != nil:
			event, object = "DELETED", has
		case now != nil && has == nil:
			event = "ADDED"
		}
		if object != nil {
			object.APIVersion, object.Kind = "v1", "Node"
			_ = json.NewEncoder(w).Encode(map[string]any{"type": event, "object": object})
			w.(http.Flusher).Flush()
		}
		has = now
		select {
		case <-changed:
		case <-r.Context().Done():
			return
		}
	}
}

func decoded[T runtime.Object](t *testing.T, body []byte) (out T) {
	obj, _, err := scheme.Codecs.UniversalDeserializer().Decode(body, nil, nil)
	if err != nil {
		t.Error(err)
		return out
	}
	return obj.(T)
}
