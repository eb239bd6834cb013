package mutations

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"

	"golang.org/x/net/http2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
)

// Namespaces of the bases and the new objects. Ranges and quotas have one of their own, because they change objects.
const (
	namespace       = "mutations"
	limitsNamespace = "mutations-limits"
)

// server is one of the compared API servers.
type server struct {
	url     string
	client  *http.Client
	current map[string]map[string]any // the stored bases by ID
	errs    map[string]string         // why bases were rejected
}

// judgement is the answer to a mutation.
type judgement struct {
	Code   int      `json:"code"`
	Reason string   `json:"reason,omitempty"`
	Causes []string `json:"causes,omitempty"` // of a rejection: field and reason, sorted

	message      string
	sent, object map[string]any // normalized, if the request was accepted
}

// reasonAborted is the reason of a request whose handler has panicked: the server aborts it without an answer.
// kube-apiserver panics in the validation of an Indexed Job with a successPolicy and without completions.
const reasonAborted = "Aborted"

// open connects to a server and creates the bases.
func open(ctx context.Context, config *rest.Config, all []*base) (*server, error) {
	config = rest.CopyConfig(config)
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		return nil, err
	}
	s := &server{url: config.Host, client: client, current: map[string]map[string]any{}, errs: map[string]string{}}
	for _, name := range []string{namespace, limitsNamespace} {
		// No controller creates the service account.
		for _, path := range []string{"/api/v1/namespaces", "/api/v1/namespaces/" + name + "/serviceaccounts"} {
			object := map[string]any{"metadata": map[string]any{"name": name}}
			if strings.HasSuffix(path, "/serviceaccounts") {
				object = map[string]any{"metadata": map[string]any{"name": "default"}}
			}
			j, err := s.send(ctx, http.MethodPost, path, object)
			if err != nil || j.Code != http.StatusCreated && j.Code != http.StatusConflict {
				return nil, errors.Join(err, fmt.Errorf("create in %s: %+v", path, j))
			}
		}
	}
	for _, b := range all {
		if err := s.create(ctx, b); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// create creates a base with its status.
func (s *server) create(ctx context.Context, b *base) error {
	j, err := s.send(ctx, http.MethodPost, b.collection(), b.object)
	if err != nil {
		return err
	}
	if j.Code != http.StatusCreated && j.Code != http.StatusConflict { // a former run has created it
		s.errs[b.id] = j.message
		return nil
	}
	if want, ok := b.object["status"]; ok && b.kind.HasStatus && j.object != nil {
		object := copyJSON(j.object).(map[string]any)
		object["status"] = want
		if m, ok := object["metadata"].(map[string]any); ok && b.kind.Group == "flowcontrol.apiserver.k8s.io" {
			delete(m, "resourceVersion") // the server writes the status too
		}
		if j, err = s.send(ctx, http.MethodPut, b.resource()+"/status", object); err != nil {
			return err
		}
		if j.Code != http.StatusOK {
			s.errs[b.id] = "status: " + j.message
		}
	}
	if j, err = s.send(ctx, http.MethodGet, b.resource(), nil); err != nil {
		return err
	}
	s.current[b.id] = j.object
	return nil
}

func (b *base) collection() string {
	path := "/apis/" + b.kind.Group + "/" + b.kind.Version
	if b.kind.Group == "" {
		path = "/api/" + b.kind.Version
	}
	if b.kind.Namespaced {
		path += "/namespaces/" + stringField(b.metadata(), "namespace")
	}
	return path + "/" + b.kind.Resource
}

func (b *base) metadata() map[string]any {
	m, _ := b.object["metadata"].(map[string]any)
	return m
}

func (b *base) resource() string { return b.collection() + "/" + stringField(b.metadata(), "name") }

// forCreate returns the object that mutations create: the base with another name.
func (b *base) forCreate() map[string]any {
	out := copyJSON(b.object).(map[string]any)
	m := out["metadata"].(map[string]any)
	m["name"] = newName(stringField(m, "name"))
	return out
}

// judge sends a mutation as a dry run. It returns false if the server has no such base, or if the mutation does not
// apply to it.
func (s *server) judge(ctx context.Context, b *base, m *mutation) (*judgement, bool, error) {
	object := b.forCreate()
	if m.Verb != create {
		object = s.current[b.id]
	}
	if object == nil {
		return nil, false, nil
	}
	sent, err := apply(object, m.Edits)
	if err != nil {
		return nil, false, nil //nolint:nilerr // the base differs, which is a difference of its own
	}
	method, path := http.MethodPost, b.collection()
	switch m.Verb {
	case update:
		method, path = http.MethodPut, b.resource()
	case status:
		method, path = http.MethodPut, b.resource()+"/status"
	}
	j, err := s.send(ctx, method, path+"?dryRun=All&fieldValidation=Strict&fieldManager=mutations", sent)
	if err != nil {
		return nil, false, err
	}
	if j.object != nil {
		normalize(b.kind, j.object, sent, m.Edits)
		j.sent = copyJSON(sent).(map[string]any)
		normalize(b.kind, j.sent, sent, m.Edits)
	}
	return j, true, nil
}

// send sends a request with an object and returns the answer.
func (s *server) send(ctx context.Context, method, path string, object map[string]any) (*judgement, error) {
	text, err := json.Marshal(object)
	if err != nil {
		return nil, err
	}
	request, err := http.NewRequestWithContext(ctx, method, s.url+path, bytes.NewReader(text))
	if err != nil {
		return nil, err
	}
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set("Accept", "application/json")
	status, body, err := s.do(request)
	var aborted http2.StreamError
	if errors.As(err, &aborted) && aborted.Code == http2.ErrCodeInternal {
		return &judgement{Code: http.StatusInternalServerError, Reason: reasonAborted, message: err.Error()}, nil
	}
	if err != nil {
		return nil, err
	}
	j := &judgement{Code: status}
	if j.Code < http.StatusBadRequest {
		j.object, err = decode(body)
		return j, err
	}
	var failure metav1.Status
	if err := json.Unmarshal(body, &failure); err != nil {
		return nil, fmt.Errorf("%s %s: %s: %s", method, path, http.StatusText(status), body)
	}
	j.Reason, j.message = string(failure.Reason), failure.Message
	if failure.Details != nil {
		for _, c := range failure.Details.Causes {
			j.Causes = append(j.Causes, c.Field+" "+strings.TrimPrefix(string(c.Type), "FieldValue"))
		}
	}
	slices.Sort(j.Causes)
	j.Causes = slices.Compact(j.Causes)
	return j, nil
}

// do sends a request and returns the status code and the body of the answer.
func (s *server) do(request *http.Request) (status int, body []byte, err error) {
	response, err := s.client.Do(request)
	if err != nil {
		return 0, nil, err
	}
	defer response.Body.Close()
	body, err = io.ReadAll(response.Body)
	return response.StatusCode, body, err
}
