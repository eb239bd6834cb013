package scheme

import (
	"fmt"
	"net/url"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/conversion"
	"k8s.io/apimachinery/pkg/runtime"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
)

// addPodOptions lets the query of a request to a pod's or node's connection be
// read into its options.
func addPodOptions(s *runtime.Scheme) {
	fromQuery(s, func(q query, out *corev1.PodExecOptions) {
		out.Stdin, out.Stdout, out.Stderr, out.TTY = q.yes("stdin"), q.yes("stdout"), q.yes("stderr"), q.yes("tty")
		out.Container, out.Command = q.text("container"), q.values["command"]
	})
	fromQuery(s, func(q query, out *corev1.PodAttachOptions) {
		out.Stdin, out.Stdout, out.Stderr, out.TTY = q.yes("stdin"), q.yes("stdout"), q.yes("stderr"), q.yes("tty")
		out.Container = q.text("container")
	})
	fromQuery(s, func(q query, out *corev1.PodLogOptions) {
		out.Container, out.Follow, out.Previous = q.text("container"), q.yes("follow"), q.yes("previous")
		out.SinceSeconds, out.TailLines, out.LimitBytes = q.number("sinceSeconds"), q.number("tailLines"), q.number("limitBytes")
		out.SinceTime, out.Timestamps = q.moment("sinceTime"), q.yes("timestamps")
		out.InsecureSkipTLSVerifyBackend = q.yes("insecureSkipTLSVerifyBackend")
		if q.has("stream") {
			out.Stream = new(q.text("stream"))
		}
	})
	fromQuery(s, func(q query, out *corev1.PodPortForwardOptions) {
		for _, one := range q.values["ports"] {
			port, err := strconv.ParseInt(one, 10, 32)
			if err != nil {
				q.refuse("ports", one)
				return
			}
			out.Ports = append(out.Ports, int32(port))
		}
	})
	fromQuery(s, func(q query, out *corev1.PodProxyOptions) { out.Path = q.text("path") })
	fromQuery(s, func(q query, out *corev1.NodeProxyOptions) { out.Path = q.text("path") })
	fromQuery(s, func(q query, out *corev1.ServiceProxyOptions) { out.Path = q.text("path") })
}

// query reads the parameters of a request; what is wrong with them is kept in
// err.
type query struct {
	values url.Values
	err    *error
}

func fromQuery[T any](s *runtime.Scheme, read func(query, *T)) {
	utilruntime.Must(s.AddConversionFunc((*url.Values)(nil), (*T)(nil), func(a, b any, _ conversion.Scope) (err error) {
		in, isIn := a.(*url.Values)
		out, isOut := b.(*T)
		if !isIn || !isOut {
			return fmt.Errorf("convert %T to %T: the conversion is from %T to %T", a, b, in, out)
		}
		read(query{*in, &err}, out)
		return err
	}))
}

func (q query) refuse(name, value string) {
	*q.err = fmt.Errorf("parameter %s: %q is not valid", name, value)
}

func (q query) has(name string) bool { return len(q.values[name]) > 0 }

func (q query) text(name string) string { return q.values.Get(name) }

// yes is true when the parameter is there and neither "0" nor "false" in any
// case, which is how Kubernetes reads it.
func (q query) yes(name string) (yes bool) {
	values := q.values[name]
	_ = runtime.Convert_Slice_string_To_bool(&values, &yes, nil)
	return yes
}

func (q query) number(name string) *int64 {
	if !q.has(name) {
		return nil
	}
	n, err := strconv.ParseInt(q.text(name), 10, 64)
	if err != nil {
		q.refuse(name, q.text(name))
	}
	return &n
}

func (q query) moment(name string) *metav1.Time {
	if !q.has(name) || q.text(name) == "" {
		return nil
	}
	t, err := time.Parse(time.RFC3339, q.text(name))
	if err != nil {
		q.refuse(name, q.text(name))
	}
	return &metav1.Time{Time: t}
}
