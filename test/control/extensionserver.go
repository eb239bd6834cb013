package control

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/uuid"
)

const wardle = "wardle.example.com"

// extensionServer is an extension API server with the namespaced resource flunders.wardle.example.com, and with a
// metrics API. It trusts every client: a test checks who has called it.
type extensionServer struct {
	*webhookServer

	mu       sync.Mutex
	down     bool
	requests []*http.Request // other than discovery
	flunders map[string]*unstructured.Unstructured
	version  int
	events   []metav1.WatchEvent
	changed  *sync.Cond
	done     bool
}

func startExtensionServer(t testing.TB, service, namespace string) *extensionServer {
	t.Helper()
	e := &extensionServer{flunders: map[string]*unstructured.Unstructured{}, version: 1}
	e.changed = sync.NewCond(&e.mu)
	e.webhookServer = startWebhook(t, e, service+"."+namespace+".svc", "external."+namespace+".svc")
	t.Cleanup(func() { // before the server waits for its requests
		e.mu.Lock()
		defer e.mu.Unlock()
		e.done = true
		e.changed.Broadcast()
	})
	return e
}

// setDown makes the server fail all requests, or none.
func (e *extensionServer) setDown(down bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.down = down
}

// last returns the last request for a path that has a suffix, or nil.
func (e *extensionServer) last(suffix string) *http.Request {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, r := range slices.Backward(e.requests) {
		if strings.HasSuffix(r.URL.Path, suffix) {
			return r
		}
	}
	return nil
}

// names returns the keys of all objects.
func (e *extensionServer) names() []string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Sorted(maps.Keys(e.flunders))
}

func (e *extensionServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	e.mu.Lock()
	down := e.down
	if strings.Count(r.URL.Path, "/") > 3 {
		e.requests = append(e.requests, r)
	}
	e.mu.Unlock()
	if down {
		http.Error(w, "down", http.StatusInternalServerError)
		return
	}
	gv := wardle + "/v1"
	switch path := r.URL.Path; {
	case path == "/apis/"+gv:
		writeJSON(w, r, metav1.APIResourceList{TypeMeta: metav1.TypeMeta{Kind: "APIResourceList", APIVersion: "v1"},
			GroupVersion: gv, APIResources: []metav1.APIResource{{Name: "flunders", SingularName: "flunder",
				Namespaced: true, Kind: "Flunder", Verbs: metav1.Verbs{"create", "delete", "get", "list", "watch"}}}})
	case path == "/apis/metrics.k8s.io/v1beta1":
		writeJSON(w, r, metav1.APIResourceList{TypeMeta: metav1.TypeMeta{Kind: "APIResourceList", APIVersion: "v1"},
			GroupVersion: "metrics.k8s.io/v1beta1", APIResources: []metav1.APIResource{{Name: "nodes",
				Kind: "NodeMetrics", Verbs: metav1.Verbs{"get", "list"}}}})
	case path == "/apis/metrics.k8s.io/v1beta1/nodes":
		writeJSON(w, r, map[string]any{"kind": "NodeMetricsList", "apiVersion": "metrics.k8s.io/v1beta1",
			"metadata": map[string]any{}, "items": []any{map[string]any{"metadata": map[string]any{"name": "extension"},
				"usage": map[string]any{"cpu": "7", "memory": "7Gi"}}}})
	case path == "/openapi/v3":
		writeJSON(w, r, map[string]any{"paths": map[string]any{"apis/" + gv: map[string]any{
			"serverRelativeURL": "/openapi/v3/apis/" + gv + "?hash=ABC"}}})
	case path == "/openapi/v3/apis/"+gv:
		_, _ = io.WriteString(w, flunderDocument)
	case strings.HasSuffix(path, "/echo"):
		echo(w)
	case strings.HasPrefix(path, "/apis/"+gv+"/"):
		e.serveFlunders(w, r, strings.Split(strings.TrimPrefix(path, "/apis/"+gv+"/"), "/"))
	default:
		http.NotFound(w, r)
	}
}

// flunderDocument is an OpenAPI v3 document.
const flunderDocument = `{"openapi": "3.0.0", "info": {"title": "wardle", "version": "v1"},
"paths": {"/apis/wardle.example.com/v1/namespaces/{namespace}/flunders": {"get": {"operationId": "listFlunders",
  "responses": {"200": {"description": "OK"}},
  "x-kubernetes-action": "list",
  "x-kubernetes-group-version-kind": {"group": "wardle.example.com", "version": "v1", "kind": "Flunder"}}}},
"components": {"schemas": {"com.example.wardle.v1.Flunder": {"type": "object", "description": "A flunder flunders.",
  "properties": {"spec": {"type": "string", "description": "What it flunders."}},
  "x-kubernetes-group-version-kind": [{"group": "wardle.example.com", "version": "v1", "kind": "Flunder"}]}}}}`

// serveFlunders serves the rest of a path: flunders, or namespaces/NAMESPACE/flunders with or without a name.
func (e *extensionServer) serveFlunders(w http.ResponseWriter, r *http.Request, rest []string) {
	namespace, name := "", ""
	if len(rest) > 2 {
		namespace, rest = rest[1], rest[2:]
	}
	if len(rest) > 1 {
		name = rest[1]
	}
	key := namespace + "/" + name
	if r.Method == http.MethodGet && r.URL.Query().Get("watch") == "true" {
		e.watch(w, r, namespace)
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	known := e.flunders[key]
	switch {
	case r.Method == http.MethodPost:
		in := &unstructured.Unstructured{}
		if err := json.NewDecoder(r.Body).Decode(&in.Object); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		in.SetNamespace(namespace)
		in.SetUID(uuid.NewUUID())
		e.record("ADDED", in)
		e.flunders[namespace+"/"+in.GetName()] = in
		writeJSON(w, r, in.Object)
	case name != "" && known == nil:
		writeError(w, r, apierrors.NewNotFound(schema.GroupResource{Group: wardle, Resource: "flunders"}, name))
	case r.Method == http.MethodGet && name != "":
		writeJSON(w, r, known.Object)
	case r.Method == http.MethodGet:
		list := map[string]any{"kind": "FlunderList", "apiVersion": wardle + "/v1",
			"metadata": map[string]any{"resourceVersion": fmt.Sprint(e.version)}}
		items := []any{}
		for _, one := range e.flunders {
			if namespace == "" || one.GetNamespace() == namespace {
				items = append(items, metadataIfAsked(r, one.Object))
			}
		}
		list["items"] = items
		writeJSON(w, r, list)
	case r.Method == http.MethodDelete && name != "":
		delete(e.flunders, key)
		e.record("DELETED", known.DeepCopy())
		writeJSON(w, r, metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: "Success"})
	default:
		writeError(w, r, apierrors.NewMethodNotSupported(schema.GroupResource{Group: wardle, Resource: "flunders"},
			r.Method))
	}
}

// record adds an event. The caller holds the lock.
func (e *extensionServer) record(kind string, obj *unstructured.Unstructured) {
	e.version++
	obj.SetResourceVersion(fmt.Sprint(e.version))
	event := metav1.WatchEvent{Type: kind}
	event.Object.Object = obj.DeepCopy()
	e.events = append(e.events, event)
	e.changed.Broadcast()
}

// watch sends the events after the requested version until the client is gone.
func (e *extensionServer) watch(w http.ResponseWriter, r *http.Request, namespace string) {
	if r.URL.Query().Has("sendInitialEvents") {
		writeError(w, r, apierrors.NewInvalid(schema.GroupKind{Kind: "ListOptions"}, "", nil))
		return
	}
	from := 0
	_, _ = fmt.Sscan(r.URL.Query().Get("resourceVersion"), &from)
	from = max(from, 1)
	go func() { // ends with the request, which ends with the server at the latest
		<-r.Context().Done()
		e.mu.Lock() // the watch waits, or has not looked yet
		defer e.mu.Unlock()
		e.changed.Broadcast()
	}()
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusOK)
	_ = http.NewResponseController(w).Flush()
	for {
		e.mu.Lock()
		for len(e.events) < from && r.Context().Err() == nil && !e.done {
			e.changed.Wait()
		}
		ended := r.Context().Err() != nil || e.done
		events := e.events[min(from-1, len(e.events)):]
		e.mu.Unlock()
		if ended {
			return
		}
		for _, event := range events {
			from++
			obj, ok := event.Object.Object.(*unstructured.Unstructured)
			if !ok || namespace != "" && obj.GetNamespace() != namespace {
				continue
			}
			text, err := json.Marshal(map[string]any{"type": event.Type, "object": metadataIfAsked(r, obj.Object)})
			if err != nil {
				return
			}
			_, _ = w.Write(append(text, '\n'))
		}
		_ = http.NewResponseController(w).Flush()
	}
}

// metadataIfAsked returns the object, or only its metadata if the client accepts that.
func metadataIfAsked(r *http.Request, obj map[string]any) map[string]any {
	if !strings.Contains(r.Header.Get("Accept"), "as=PartialObjectMetadata") {
		return obj
	}
	return map[string]any{"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": obj["metadata"]}
}

func writeJSON(w http.ResponseWriter, r *http.Request, obj any) {
	if m, ok := obj.(map[string]any); ok && strings.Contains(r.Header.Get("Accept"), "as=PartialObjectMetadata") {
		switch {
		case m["items"] != nil:
			m["kind"], m["apiVersion"] = "PartialObjectMetadataList", "meta.k8s.io/v1"
		case m["metadata"] != nil:
			obj = metadataIfAsked(r, m)
		}
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(obj)
}

func writeError(w http.ResponseWriter, r *http.Request, err *apierrors.StatusError) {
	status := err.Status()
	status.TypeMeta = metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(int(status.Code))
	_ = json.NewEncoder(w).Encode(status)
}

// echo upgrades the connection and returns one line.
func echo(w http.ResponseWriter) {
	conn, buffered, err := http.NewResponseController(w).Hijack()
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	defer func() { _ = conn.Close() }() // the client reads to the end
	_, _ = io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
	line, err := bufio.NewReader(buffered).ReadString('\n')
	if err == nil {
		_, _ = io.WriteString(conn, "echo "+line)
	}
}
