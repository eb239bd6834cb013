package pods

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	genericrest "k8s.io/apiserver/pkg/registry/generic/rest"
	"k8s.io/apiserver/pkg/registry/rest"
)

// Log implements pods/log.
type Log struct{ *podLocator }

var (
	_ rest.GetterWithOptions = (*Log)(nil)
	_ rest.StorageMetadata   = (*Log)(nil)
)

// New returns an empty pod.
func (l *Log) New() runtime.Object { return &corev1.Pod{} }

// Destroy does nothing: there is no storage.
func (l *Log) Destroy() {}

// NewGetOptions returns empty options.
func (l *Log) NewGetOptions() (runtime.Object, bool, string) {
	return &corev1.PodLogOptions{}, false, ""
}

// ProducesMIMETypes returns text/plain.
func (l *Log) ProducesMIMETypes(string) []string { return []string{"text/plain"} }

// ProducesObject returns a string, for the API documentation.
func (l *Log) ProducesObject(string) any { return "" }

// Get returns a stream from the kubelet of the pod's node. The log of a pod without a node is
// empty.
func (l *Log) Get(ctx context.Context, name string, options runtime.Object) (runtime.Object, error) {
	o, ok := options.(*corev1.PodLogOptions)
	if !ok {
		return nil, fmt.Errorf("invalid options object: %#v", options)
	}
	if errs := validateLogOptions(o); len(errs) > 0 {
		return nil, apierrors.NewInvalid(corev1.SchemeGroupVersion.WithKind("PodLogOptions").GroupKind(), name, errs)
	}
	pod, err := l.pod(ctx, name)
	if err != nil {
		return nil, err
	}
	which, err := container(pod, o.Container)
	if err != nil {
		return nil, err
	}
	out := &logStream{&genericrest.LocationStreamer{
		ContentType:     "text/plain",
		Flush:           o.Follow,
		ResponseChecker: genericrest.NewGenericHttpResponseChecker(l.pods.Kind.GroupResource(), name),
		RedirectChecker: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
	if pod.Spec.NodeName == "" {
		return out, nil
	}
	if out.Location, err = l.kubeletURL(ctx, pod.Spec.NodeName); err != nil {
		return nil, err
	}
	out.Location.Path = fmt.Sprintf("/containerLogs/%s/%s/%s", pod.Namespace, pod.Name, which)
	out.Location.RawQuery = logQuery(o).Encode()
	out.Transport = l.KubeletTransport(pod.Spec.NodeName)
	if o.InsecureSkipTLSVerifyBackend {
		out.Transport = l.InsecureKubeletTransport
	}
	return out, nil
}

// logStream is the response of the kubelet.
type logStream struct{ *genericrest.LocationStreamer }

// InputStream returns the response body.
func (s *logStream) InputStream(ctx context.Context, version, accept string) (io.ReadCloser, bool, string, error) {
	body, flush, kind, err := s.LocationStreamer.InputStream(ctx, version, accept)
	if body != nil {
		body = &delayedEOF{ReadCloser: body}
	}
	return body, flush, kind, err
}

// delayedEOF returns io.EOF separately from the last bytes: the WebSocket copy of the library drops
// bytes that come with an error.
type delayedEOF struct {
	io.ReadCloser
	end error
}

func (p *delayedEOF) Read(b []byte) (n int, err error) {
	if p.end != nil {
		return 0, p.end
	}
	n, err = p.ReadCloser.Read(b)
	if n > 0 && err != nil {
		p.end, err = err, nil
	}
	return n, err
}

func logQuery(o *corev1.PodLogOptions) url.Values {
	q := url.Values{}
	for name, on := range map[string]bool{"follow": o.Follow, "previous": o.Previous, "timestamps": o.Timestamps} {
		if on {
			q.Set(name, "true")
		}
	}
	for name, n := range map[string]*int64{"sinceSeconds": o.SinceSeconds, "tailLines": o.TailLines,
		"limitBytes": o.LimitBytes} {
		if n != nil {
			q.Set(name, strconv.FormatInt(*n, 10))
		}
	}
	if o.SinceTime != nil {
		q.Set("sinceTime", o.SinceTime.UTC().Format(time.RFC3339))
	}
	if o.Stream != nil && *o.Stream != corev1.LogStreamAll {
		q.Set("stream", *o.Stream)
	}
	return q
}

func validateLogOptions(o *corev1.PodLogOptions) field.ErrorList {
	var errs field.ErrorList
	if n := o.TailLines; n != nil && *n < 0 {
		errs = append(errs, field.Invalid(field.NewPath("tailLines"), *n, "must be greater than or equal to 0"))
	}
	if n := o.LimitBytes; n != nil && *n < 1 {
		errs = append(errs, field.Invalid(field.NewPath("limitBytes"), *n, "must be greater than 0"))
	}
	if o.SinceSeconds != nil && o.SinceTime != nil {
		errs = append(
			errs,
			field.Forbidden(field.NewPath(""), "at most one of `sinceTime` or `sinceSeconds` may be specified"),
		)
	} else if n := o.SinceSeconds; n != nil && *n < 1 {
		errs = append(errs, field.Invalid(field.NewPath("sinceSeconds"), *n, "must be greater than 0"))
	}
	if s := o.Stream; s != nil {
		streams := []string{corev1.LogStreamAll, corev1.LogStreamStdout, corev1.LogStreamStderr}
		if *s != streams[0] && *s != streams[1] && *s != streams[2] {
			errs = append(errs, field.NotSupported(field.NewPath("stream"), *s, streams))
		} else if *s != corev1.LogStreamAll && o.TailLines != nil {
			errs = append(errs, field.Forbidden(field.NewPath(""),
				"`tailLines` and specific `stream` are mutually exclusive for now"))
		}
	}
	return errs
}
