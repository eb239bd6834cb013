package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"

	"berth/nodeapi"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// logOptions are the flags of logs.
type logOptions struct {
	namespace, selector, container, sinceTime    string
	follow, previous, all, timestamps, withNames bool
	tail, limit                                  int64
	since                                        time.Duration
}

func (c *factory) logs() *cobra.Command {
	var o logOptions
	cmd := &cobra.Command{
		Use:   "logs (POD | -l LABELS)",
		Short: "Print the logs of a container in a pod",
		Example: `  berth logs web -f --tail 20
  berth logs -l app=web --all-containers --prefix`,
		Args: func(cmd *cobra.Command, args []string) error {
			if o.selector == "" {
				return onePod(cmd, args)
			}
			if len(args) > 0 {
				return errors.New("a pod and -l cannot be used together")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			req, err := o.request(cmd)
			if err != nil {
				return err
			}
			client, err := c.dial()
			if err != nil {
				return err
			}
			defer client.Close()
			pods, err := o.pods(cmd, client, args)
			if err != nil {
				return err
			}
			var all []nodeapi.LogRequest
			for i := range pods {
				names := containersOf(&pods[i])
				if !o.all {
					name, err := chooseContainer(&pods[i], o.container, cmd.ErrOrStderr())
					if err != nil {
						return err
					}
					names = []string{name}
				}
				for _, name := range names {
					one := req
					one.Namespace, one.Pod, one.Container = pods[i].Namespace, pods[i].Name, name
					all = append(all, one)
				}
			}
			return o.print(cmd.Context(), client, all, cmd.OutOrStdout())
		},
	}
	f := cmd.Flags()
	namespaceFlag(cmd, &o.namespace)
	f.StringVarP(&o.selector, "selector", "l", "", "label selector of the pods, such as app=web,tier!=db")
	f.StringVarP(&o.container, "container", "c", "", "container name")
	f.BoolVar(&o.all, "all-containers", false, "print the logs of all containers")
	f.BoolVarP(&o.follow, "follow", "f", false, "follow new log output")
	f.BoolVarP(&o.previous, "previous", "p", false, "print the logs of the previous instance of the container")
	f.BoolVar(&o.timestamps, "timestamps", false, "include timestamps on each line")
	f.BoolVar(&o.withNames, "prefix", false, "prefix each line with the pod and container name")
	f.Int64Var(&o.tail, "tail", -1, "number of recent lines to print; -1 for all (default with -l: 10)")
	f.Int64Var(&o.limit, "limit-bytes", 0, "maximum number of bytes to print; 0 for no limit")
	f.DurationVar(&o.since, "since", 0, "only print lines newer than a relative duration like 5s, 2m, or 3h")
	f.StringVar(&o.sinceTime, "since-time", "", "only print lines after a date (RFC3339)")
	c.complete(cmd)
	return cmd
}

// request converts the flags to a request and validates them.
func (o logOptions) request(cmd *cobra.Command) (nodeapi.LogRequest, error) {
	req := nodeapi.LogRequest{Follow: o.follow, Previous: o.previous, Timestamps: o.timestamps, Since: o.since}
	switch {
	case o.all && o.container != "":
		return req, errors.New("--all-containers and -c cannot be used together")
	case o.since < 0:
		return req, errors.New("--since must be greater than 0")
	case o.since > 0 && o.sinceTime != "":
		return req, errors.New("at most one of --since and --since-time may be used")
	case o.tail < -1:
		return req, errors.New("--tail must be greater than or equal to -1")
	case cmd.Flags().Changed("limit-bytes") && o.limit < 1:
		return req, errors.New("--limit-bytes must be greater than 0")
	}
	if o.sinceTime != "" {
		t, err := time.Parse(time.RFC3339, o.sinceTime)
		if err != nil {
			return req, fmt.Errorf("--since-time: %q is not a time like 2006-01-02T15:04:05Z", o.sinceTime)
		}
		req.SinceTime = t
	}
	if o.selector != "" && !cmd.Flags().Changed("tail") {
		o.tail = tailOfMany
	}
	if o.tail >= 0 {
		req.Tail = &o.tail
	}
	if o.limit > 0 {
		req.LimitBytes = &o.limit
	}
	return req, nil
}

// tailOfMany is the default number of lines per pod with a selector, as in kubectl.
const tailOfMany = 10

// pods returns the named pod, or the pods that match the selector.
func (o logOptions) pods(cmd *cobra.Command, client *nodeapi.Client, args []string) ([]corev1.Pod, error) {
	if o.selector != "" {
		l, err := client.Pods(cmd.Context(), nodeapi.PodsRequest{Namespace: o.namespace, Selector: o.selector})
		if err != nil {
			return nil, err
		}
		if len(l.Items) == 0 {
			_, err = fmt.Fprintf(cmd.ErrOrStderr(), "No resources found in %s namespace.\n", o.namespace)
		}
		return l.Items, err
	}
	t, err := targetOf(cmd, o.namespace, args[0])
	if err != nil {
		return nil, err
	}
	pod, err := client.Pod(cmd.Context(), t.namespace, t.name)
	if err != nil {
		return nil, err
	}
	return []corev1.Pod{*pod}, nil
}

// print prints the requested logs, one after the other, or concurrently if they are followed. A
// missing log does not prevent the others from being printed.
func (o logOptions) print(ctx context.Context, client *nodeapi.Client, all []nodeapi.LogRequest, out io.Writer) error {
	if len(all) == 1 && !o.withNames {
		return client.Logs(ctx, all[0], out, out)
	}
	lines := &lineLock{w: out}
	errs := make([]error, len(all))
	one := func(i int) {
		req := all[i]
		prefix := ""
		if o.withNames {
			prefix = "[pod/" + req.Pod + "/" + req.Container + "] "
		}
		// A writer for each stream, so that lines of the two are never mixed.
		stdout, stderr := lines.writer(prefix), lines.writer(prefix)
		err := client.Logs(ctx, req, stdout, stderr)
		errs[i] = errors.Join(err, stdout.rest(), stderr.rest())
	}
	if !o.follow {
		for i := range all {
			one(i)
		}
		return firstOf(errs)
	}
	var wg sync.WaitGroup
	for i := range all {
		wg.Go(func() { one(i) })
	}
	wg.Wait()
	return firstOf(errs)
}

// firstOf returns a single error unchanged, so that its reason can be printed.
func firstOf(errs []error) error {
	errs = slices.DeleteFunc(errs, func(err error) bool { return err == nil })
	if len(errs) == 1 {
		return errs[0]
	}
	return errors.Join(errs...)
}

// chooseContainer returns the named container, the one in the pod's annotation, or the first one
// with a note about the choice.
func chooseContainer(pod *corev1.Pod, name string, notes io.Writer) (string, error) {
	all := containersOf(pod)
	if name != "" {
		if !slices.Contains(all, name) {
			return "", apierrors.NewBadRequest(
				fmt.Sprintf("container %s is not valid for pod %s, valid containers are: %s",
					name, pod.Name, strings.Join(all, ", ")),
			)
		}
		return name, nil
	}
	if marked := pod.Annotations["kubectl.kubernetes.io/default-container"]; marked != "" &&
		slices.Contains(all, marked) {
		return marked, nil
	}
	if len(pod.Spec.Containers) == 0 {
		return "", fmt.Errorf("pod %s has no containers", pod.Name)
	}
	first := pod.Spec.Containers[0].Name
	if len(all) > 1 {
		if _, err := fmt.Fprintf(
			notes, "Defaulted container %q out of: %s\n", first, clean(strings.Join(describeContainers(pod), ", ")),
		); err != nil {
			return "", err
		}
	}
	return first, nil
}

// describeContainers lists the containers, app containers first, and others with their type.
func describeContainers(pod *corev1.Pod) []string {
	var names []string
	for _, c := range pod.Spec.Containers {
		names = append(names, c.Name)
	}
	for _, c := range pod.Spec.EphemeralContainers {
		names = append(names, c.Name+" (ephem)")
	}
	for _, c := range pod.Spec.InitContainers {
		names = append(names, c.Name+" (init)")
	}
	return names
}

// lineLock synchronizes writers that share an output, line by line.
type lineLock struct {
	mu sync.Mutex
	w  io.Writer
}

// lineWriter buffers incomplete lines.
type lineWriter struct {
	lock   *lineLock
	prefix string
	held   []byte
}

func (l *lineLock) writer(prefix string) *lineWriter { return &lineWriter{lock: l, prefix: prefix} }

func (w *lineWriter) Write(p []byte) (int, error) {
	w.held = append(w.held, p...)
	end := bytes.LastIndexByte(w.held, '\n') + 1
	if end == 0 {
		return len(p), nil
	}
	err := w.emit(w.held[:end])
	w.held = append(w.held[:0], w.held[end:]...)
	return len(p), err
}

// rest writes an incomplete last line.
func (w *lineWriter) rest() error {
	if len(w.held) == 0 {
		return nil
	}
	return w.emit(append(w.held, '\n'))
}

func (w *lineWriter) emit(lines []byte) error {
	if w.prefix != "" {
		var b bytes.Buffer
		for line := range bytes.Lines(lines) {
			b.WriteString(w.prefix)
			b.Write(line)
		}
		lines = b.Bytes()
	}
	w.lock.mu.Lock()
	defer w.lock.mu.Unlock()
	_, err := w.lock.w.Write(lines)
	return err
}
