package pods

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/filters"
	"k8s.io/apiserver/pkg/registry/rest"
	translator "k8s.io/apiserver/pkg/util/proxy"
	"k8s.io/streaming/pkg/httpstream/wsstream"
)

// streamMethods are the methods of streaming connections: GET for WebSocket, POST for SPDY.
var streamMethods = []string{http.MethodGet, http.MethodPost}

var (
	_ rest.Connecter = (*Exec)(nil)
	_ rest.Connecter = (*Attach)(nil)
	_ rest.Connecter = (*PortForward)(nil)
)

// streams are the requested standard streams of a process.
type streams struct{ in, out, err, tty bool }

func (s streams) query() url.Values {
	q := url.Values{}
	for name, enabled := range map[string]bool{"input": s.in, "output": s.out, "error": s.err, "tty": s.tty} {
		if enabled {
			q.Set(name, "1")
		}
	}
	return q
}

// check rejects combinations that are not possible.
func (s streams) check() error {
	switch {
	case !s.in && !s.out && !s.err:
		return apierrors.NewBadRequest("you must specify at least 1 of stdin, stdout, stderr")
	case s.tty && s.err:
		return apierrors.NewBadRequest("tty and stderr cannot both be true")
	}
	return nil
}

// authorizeCreate requires the verb create. WebSocket requests are authorized with the verb get,
// but streaming to a container or its network requires more than read access.
func (r *podLocator) authorizeCreate(ctx context.Context) error {
	attrs, err := filters.GetAuthorizerAttributes(ctx)
	if err != nil {
		return apierrors.NewInternalError(err)
	}
	if attrs.GetVerb() == "create" {
		return nil // authorized already
	}
	create := authorizer.AttributesRecord{
		User: attrs.GetUser(), Verb: "create", Namespace: attrs.GetNamespace(), APIGroup: attrs.GetAPIGroup(),
		APIVersion: attrs.GetAPIVersion(),
		Resource:   attrs.GetResource(), Subresource: attrs.GetSubresource(), Name: attrs.GetName(),
		ResourceRequest: true,
		Path:            attrs.GetPath(),
	}
	decision, reason, err := r.Authorizer.Authorize(ctx, create)
	if decision == authorizer.DecisionAllow {
		return nil
	}
	if err != nil {
		return apierrors.NewInternalError(err)
	}
	of := schema.GroupResource{Group: create.APIGroup, Resource: create.Resource + "/" + create.Subresource}
	return apierrors.NewForbidden(of, create.Name,
		errors.New(cmp.Or(reason, "WebSocket requests require the verb create")))
}

// stream connects a client to a process in a container, through the kubelet of the pod's node.
// WebSocket connections are translated to SPDY, so kubelets need to support SPDY only.
func (r *podLocator) stream(
	ctx context.Context,
	verb string,
	pod *corev1.Pod,
	name string,
	s streams,
	query url.Values,
	respond rest.Responder,
) (http.Handler, error) {
	name, err := container(pod, name)
	if err != nil {
		return nil, err
	}
	to, err := r.kubeletURLOf(ctx, pod)
	if err != nil {
		return nil, err
	}
	to.Path = fmt.Sprintf("/%s/%s/%s/%s", verb, pod.Namespace, pod.Name, name)
	to.RawQuery = query.Encode()
	transport := r.KubeletTransport(pod.Spec.NodeName)
	translate := translator.NewStreamTranslatorHandler(
		to,
		transport,
		0,
		translator.Options{Stdin: s.in, Stdout: s.out, Stderr: s.err, Tty: s.tty},
	)
	return translator.NewTranslatingHandler(
		newProxyHandler(to, transport, true, respond),
		translate,
		wsstream.IsWebSocketRequestWithStreamCloseProtocol,
	), nil
}

// kubeletURLOf returns the URL of the kubelet of a pod's node.
func (r *podLocator) kubeletURLOf(ctx context.Context, pod *corev1.Pod) (*url.URL, error) {
	if pod.Spec.NodeName == "" {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("pod %s does not have a host assigned", pod.Name))
	}
	return r.kubeletURL(ctx, pod.Spec.NodeName)
}

// Exec implements pods/exec.
type Exec struct{ *podLocator }

// New returns empty options: their kind is that of the subresource.
func (e *Exec) New() runtime.Object { return &corev1.PodExecOptions{} }

// Destroy does nothing: there is no storage.
func (e *Exec) Destroy() {}

// ConnectMethods returns GET and POST.
func (e *Exec) ConnectMethods() []string { return slices.Clone(streamMethods) }

// NewConnectOptions returns empty options.
func (e *Exec) NewConnectOptions() (runtime.Object, bool, string) {
	return &corev1.PodExecOptions{}, false, ""
}

// Connect returns the streaming handler.
func (e *Exec) Connect(
	ctx context.Context,
	name string,
	options runtime.Object,
	respond rest.Responder,
) (http.Handler, error) {
	o, ok := options.(*corev1.PodExecOptions)
	if !ok {
		return nil, fmt.Errorf("invalid options object: %#v", options)
	}
	if err := e.authorizeCreate(ctx); err != nil {
		return nil, err
	}
	pod, err := e.pod(ctx, name)
	if err != nil {
		return nil, err
	}
	s := streams{o.Stdin, o.Stdout, o.Stderr, o.TTY}
	if err := s.check(); err != nil {
		return nil, err
	}
	if len(o.Command) == 0 {
		return nil, apierrors.NewBadRequest("you must specify a command")
	}
	query := s.query()
	query["command"] = o.Command
	return e.stream(ctx, "exec", pod, o.Container, s, query, respond)
}

// Attach implements pods/attach.
type Attach struct{ *podLocator }

// New returns empty options: their kind is that of the subresource.
func (a *Attach) New() runtime.Object { return &corev1.PodAttachOptions{} }

// Destroy does nothing: there is no storage.
func (a *Attach) Destroy() {}

// ConnectMethods returns GET and POST.
func (a *Attach) ConnectMethods() []string { return slices.Clone(streamMethods) }

// NewConnectOptions returns empty options.
func (a *Attach) NewConnectOptions() (runtime.Object, bool, string) {
	return &corev1.PodAttachOptions{}, false, ""
}

// Connect returns the streaming handler.
func (a *Attach) Connect(
	ctx context.Context,
	name string,
	options runtime.Object,
	respond rest.Responder,
) (http.Handler, error) {
	o, ok := options.(*corev1.PodAttachOptions)
	if !ok {
		return nil, fmt.Errorf("invalid options object: %#v", options)
	}
	if err := a.authorizeCreate(ctx); err != nil {
		return nil, err
	}
	pod, err := a.pod(ctx, name)
	if err != nil {
		return nil, err
	}
	s := streams{o.Stdin, o.Stdout, o.Stderr, o.TTY}
	if err := s.check(); err != nil {
		return nil, err
	}
	return a.stream(ctx, "attach", pod, o.Container, s, s.query(), respond)
}

// PortForward implements pods/portforward.
type PortForward struct{ *podLocator }

// New returns empty options: their kind is that of the subresource.
func (p *PortForward) New() runtime.Object { return &corev1.PodPortForwardOptions{} }

// Destroy does nothing: there is no storage.
func (p *PortForward) Destroy() {}

// ConnectMethods returns GET and POST.
func (p *PortForward) ConnectMethods() []string { return slices.Clone(streamMethods) }

// NewConnectOptions returns empty options.
func (p *PortForward) NewConnectOptions() (runtime.Object, bool, string) {
	return &corev1.PodPortForwardOptions{}, false, ""
}

// Connect returns the streaming handler. A WebSocket tunnel contains SPDY, which is passed on
// unchanged.
func (p *PortForward) Connect(
	ctx context.Context,
	name string,
	options runtime.Object,
	respond rest.Responder,
) (http.Handler, error) {
	o, ok := options.(*corev1.PodPortForwardOptions)
	if !ok {
		return nil, fmt.Errorf("invalid options object: %#v", options)
	}
	if err := p.authorizeCreate(ctx); err != nil {
		return nil, err
	}
	pod, err := p.pod(ctx, name)
	if err != nil {
		return nil, err
	}
	to, err := p.kubeletURLOf(ctx, pod)
	if err != nil {
		return nil, err
	}
	to.Path = fmt.Sprintf("/portForward/%s/%s", pod.Namespace, pod.Name)
	query := url.Values{}
	for _, port := range o.Ports {
		query.Add("port", strconv.Itoa(int(port)))
	}
	to.RawQuery = query.Encode()
	on := newProxyHandler(to, p.KubeletTransport(pod.Spec.NodeName), true, respond)
	return translator.NewTranslatingHandler(
		on,
		translator.NewTunnelingHandler(on),
		wsstream.IsWebSocketRequestWithTunnelingProtocol,
	), nil
}
