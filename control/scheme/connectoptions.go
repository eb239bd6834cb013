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

// addConnectOptions adds the conversion of query parameters to the options of connect subresources,
// such as pods/exec.
func addConnectOptions(s *runtime.Scheme) {
	fromQuery(s, func(q queryValues, out *corev1.PodExecOptions) {
		out.Stdin, out.Stdout = q.boolean("stdin"), q.boolean("stdout")
		out.Stderr, out.TTY = q.boolean("stderr"), q.boolean("tty")
		out.Container, out.Command = q.str("container"), q.values["command"]
	})
	fromQuery(s, func(q queryValues, out *corev1.PodAttachOptions) {
		out.Stdin, out.Stdout = q.boolean("stdin"), q.boolean("stdout")
		out.Stderr, out.TTY = q.boolean("stderr"), q.boolean("tty")
		out.Container = q.str("container")
	})
	fromQuery(s, func(q queryValues, out *corev1.PodLogOptions) {
		out.Container, out.Follow, out.Previous = q.str("container"), q.boolean("follow"), q.boolean("previous")
		out.SinceSeconds = q.integer("sinceSeconds")
		out.TailLines, out.LimitBytes = q.integer("tailLines"), q.integer("limitBytes")
		out.SinceTime, out.Timestamps = q.timestamp("sinceTime"), q.boolean("timestamps")
		out.InsecureSkipTLSVerifyBackend = q.boolean("insecureSkipTLSVerifyBackend")
		if q.has("stream") {
			out.Stream = new(q.str("stream"))
		}
	})
	fromQuery(s, func(q queryValues, out *corev1.PodPortForwardOptions) {
		for _, one := range q.values["ports"] {
			port, err := strconv.ParseInt(one, 10, 32)
			if err != nil {
				q.invalid("ports", one)
				return
			}
			out.Ports = append(out.Ports, int32(port))
		}
	})
	fromQuery(s, func(q queryValues, out *corev1.PodProxyOptions) { out.Path = q.str("path") })
	fromQuery(s, func(q queryValues, out *corev1.NodeProxyOptions) { out.Path = q.str("path") })
	fromQuery(s, func(q queryValues, out *corev1.ServiceProxyOptions) { out.Path = q.str("path") })
}

// queryValues reads the parameters of a request. It stores an error in err.
type queryValues struct {
	values url.Values
	err    *error
}

func fromQuery[T any](s *runtime.Scheme, read func(queryValues, *T)) {
	utilruntime.Must(s.AddConversionFunc((*url.Values)(nil), (*T)(nil), func(a, b any, _ conversion.Scope) (err error) {
		in, isIn := a.(*url.Values)
		out, isOut := b.(*T)
		if !isIn || !isOut {
			return fmt.Errorf("convert %T to %T: the conversion is from %T to %T", a, b, in, out)
		}
		read(queryValues{*in, &err}, out)
		return err
	}))
}

func (q queryValues) invalid(name, value string) {
	*q.err = fmt.Errorf("parameter %s: %q is not valid", name, value)
}

func (q queryValues) has(name string) bool { return len(q.values[name]) > 0 }

func (q queryValues) str(name string) string { return q.values.Get(name) }

// boolean is true when the parameter is present and neither "0" nor "false" in any case, as in
// Kubernetes.
func (q queryValues) boolean(name string) (yes bool) {
	values := q.values[name]
	_ = runtime.Convert_Slice_string_To_bool(&values, &yes, nil)
	return yes
}

func (q queryValues) integer(name string) *int64 {
	if !q.has(name) {
		return nil
	}
	n, err := strconv.ParseInt(q.str(name), 10, 64)
	if err != nil {
		q.invalid(name, q.str(name))
	}
	return &n
}

func (q queryValues) timestamp(name string) *metav1.Time {
	if !q.has(name) || q.str(name) == "" {
		return nil
	}
	t, err := time.Parse(time.RFC3339, q.str(name))
	if err != nil {
		q.invalid(name, q.str(name))
	}
	return &metav1.Time{Time: t}
}
