package pods

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/registry/rest"
)

// NodeView implements pods/why and pods/timeline: JSON that the agent on the pod's node computes.
type NodeView struct {
	*podLocator

	kubeletPath string
}

var (
	_ rest.Getter          = (*NodeView)(nil)
	_ rest.StorageMetadata = (*NodeView)(nil)
)

// Limits of a response of an agent.
const (
	nodeViewTimeout = 15 * time.Second
	maxNodeView     = 8 << 20 // bytes
)

// New returns an empty pod.
func (v *NodeView) New() runtime.Object { return &corev1.Pod{} }

// Destroy does nothing: there is no storage.
func (v *NodeView) Destroy() {}

// ProducesMIMETypes returns application/json.
func (v *NodeView) ProducesMIMETypes(string) []string { return []string{runtime.ContentTypeJSON} }

// ProducesObject returns a string, for the API documentation.
func (v *NodeView) ProducesObject(string) any { return "" }

// Get returns the response of the agent on the pod's node.
func (v *NodeView) Get(ctx context.Context, name string, _ *metav1.GetOptions) (runtime.Object, error) {
	pod, err := v.pod(ctx, name)
	if err != nil {
		return nil, err
	}
	node := pod.Spec.NodeName
	if node == "" {
		return nil, statusError(http.StatusNotFound, metav1.StatusReasonNotFound,
			fmt.Sprintf("pod %q is not assigned to a node yet%s", name, schedulingMessage(pod)))
	}
	location, err := v.kubeletURL(ctx, node)
	if apierrors.IsNotFound(err) {
		return nil, statusError(http.StatusNotFound, metav1.StatusReasonNotFound,
			fmt.Sprintf("node %q of pod %q does not exist", node, name))
	} else if err != nil {
		return nil, err
	}
	location.Path = fmt.Sprintf("/%s/%s/%s", v.kubeletPath, pod.Namespace, pod.Name)
	ctx, cancel := context.WithTimeout(ctx, nodeViewTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, location.String(), http.NoBody)
	if err != nil {
		return nil, fmt.Errorf("request to node %s: %w", node, err)
	}
	resp, err := v.KubeletTransport(node).RoundTrip(req)
	if err != nil {
		return nil, apierrors.NewServiceUnavailable(fmt.Sprintf("node %q is unreachable: %v", node, err))
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxNodeView+1))
	switch {
	case err != nil:
		return nil, apierrors.NewServiceUnavailable(fmt.Sprintf("node %q is unreachable: %v", node, err))
	case len(body) > maxNodeView:
		return nil, apierrors.NewInternalError(fmt.Errorf("response of node %q is too large", node))
	}
	return nodeView(body), nodeViewError(node, resp, body)
}

// nodeViewError returns the error of a response. A kubelet that does not know the path responds as net/http does.
func nodeViewError(node string, resp *http.Response, body []byte) error {
	text := strings.TrimSpace(string(body[:min(len(body), 2048)]))
	switch code := resp.StatusCode; {
	case code == http.StatusOK && strings.HasPrefix(resp.Header.Get("Content-Type"), runtime.ContentTypeJSON):
		return nil
	case code == http.StatusOK, code == http.StatusNotFound && text == "404 page not found":
		return statusError(http.StatusNotImplemented, "NotImplemented",
			fmt.Sprintf("node %q does not run berth, or a version that does not explain pods", node))
	case code == http.StatusNotFound:
		return statusError(http.StatusNotFound, metav1.StatusReasonNotFound, fmt.Sprintf("node %q: %s", node, text))
	case code == http.StatusBadRequest:
		return apierrors.NewBadRequest(fmt.Sprintf("node %q: %s", node, text))
	case code == http.StatusUnauthorized, code == http.StatusForbidden, code == http.StatusMethodNotAllowed:
		return apierrors.NewServiceUnavailable(fmt.Sprintf("node %q rejects requests of the server: %s", node, text))
	default:
		return apierrors.NewInternalError(fmt.Errorf("node %q: %s: %s", node, resp.Status, text))
	}
}

// schedulingMessage returns why the scheduler has not assigned the pod, for an error message.
func schedulingMessage(pod *corev1.Pod) string {
	for i := range pod.Status.Conditions {
		c := &pod.Status.Conditions[i]
		if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse && c.Message != "" {
			return ": " + c.Message
		}
	}
	return ""
}

func statusError(code int32, reason metav1.StatusReason, message string) error {
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		Status: metav1.StatusFailure, Code: code, Reason: reason, Message: message,
	}}
}

// nodeView is the JSON of an agent, to be sent unchanged.
type nodeView []byte

var _ rest.ResourceStreamer = nodeView(nil)

// GetObjectKind returns an empty kind: the content is not an API object.
func (v nodeView) GetObjectKind() schema.ObjectKind { return schema.EmptyObjectKind }

// DeepCopyObject returns v, which never changes.
func (v nodeView) DeepCopyObject() runtime.Object { return v }

// InputStream returns the content.
func (v nodeView) InputStream(context.Context, string, string) (io.ReadCloser, bool, string, error) {
	return io.NopCloser(bytes.NewReader(v)), false, runtime.ContentTypeJSON, nil
}
