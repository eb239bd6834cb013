package cli

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"berth/nodeapi"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
)

// eventOptions are the flags of events.
type eventOptions struct {
	namespace, selector, format, of string
	types                           []string
	all, watch, bare                bool
}

func (c *factory) events() *cobra.Command {
	var o eventOptions
	cmd := &cobra.Command{
		Use:   "events [POD]",
		Short: "List the events of this node or of one pod",
		Args:  cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			req, err := o.request(cmd, args)
			if err != nil {
				return err
			}
			client, err := c.dial()
			if err != nil {
				return err
			}
			defer client.Close()
			p := &eventPrinter{
				o:     o,
				now:   c.now,
				table: table{w: cmd.OutOrStdout(), bare: o.bare},
				out:   cmd.OutOrStdout(),
				notes: cmd.ErrOrStderr(),
			}
			if o.watch {
				return client.WatchEvents(cmd.Context(), req, p.one)
			}
			l, err := client.Events(cmd.Context(), req)
			if err != nil {
				return err
			}
			return p.list(l)
		},
	}
	f := cmd.Flags()
	namespaceFlag(cmd, &o.namespace)
	f.BoolVarP(&o.all, "all-namespaces", "A", false, "list the events of all namespaces")
	f.StringVarP(&o.selector, "selector", "l", "", "label selector for existing pods, such as app=web,tier!=db")
	f.BoolVarP(&o.watch, "watch", "w", false, "watch for new events after listing")
	f.StringVar(&o.of, "for", "", "list only the events of this pod, as POD or pod/POD")
	f.BoolVar(&o.bare, "no-headers", false, "do not print headers")
	f.StringSliceVar(&o.types, "types", nil, "list only events of these types: Normal, Warning")
	f.StringVarP(&o.format, "output", "o", "", "output format: json or yaml")
	c.complete(cmd)
	fixed(cmd, "types", corev1.EventTypeNormal, corev1.EventTypeWarning)
	fixed(cmd, "output", "json", "yaml")
	if err := cmd.RegisterFlagCompletionFunc("for", c.completePods); err != nil {
		panic(err) // registered twice: a programming error
	}
	return cmd
}

func (o eventOptions) request(cmd *cobra.Command, args []string) (req nodeapi.EventsRequest, err error) {
	if err := checkFormat(o.format, "json", "yaml"); err != nil {
		return req, err
	}
	for _, t := range o.types {
		if !strings.EqualFold(t, corev1.EventTypeNormal) && !strings.EqualFold(t, corev1.EventTypeWarning) {
			return req, fmt.Errorf("--types must be Normal or Warning, not %q", t)
		}
	}
	if o.of != "" && len(args) == 1 {
		return req, errors.New("a pod and --for cannot be used together")
	}
	if o.of != "" {
		args = []string{o.of}
	}
	if len(args) == 1 && o.selector != "" {
		return req, errors.New("a pod and -l cannot be used together")
	}
	if len(args) == 1 {
		t, err := targetOf(cmd, o.namespace, args[0])
		return nodeapi.EventsRequest{Namespace: t.namespace, Pod: t.name}, err
	}
	req.Selector = o.selector
	if !o.all {
		req.Namespace = o.namespace
	}
	return req, nil
}

func (o eventOptions) takes(e *corev1.Event) bool {
	return len(o.types) == 0 ||
		slices.ContainsFunc(o.types, func(t string) bool { return strings.EqualFold(t, e.Type) })
}

// eventPrinter prints events in the requested format.
type eventPrinter struct {
	o          eventOptions
	now        func() time.Time
	table      table
	out, notes io.Writer
}

func (p *eventPrinter) list(l *corev1.EventList) error {
	l.Items = slices.DeleteFunc(l.Items, func(e corev1.Event) bool { return !p.o.takes(&e) })
	if p.o.format != "" {
		return encode(p.out, p.o.format, listOf(append([]corev1.Event{}, l.Items...), l.ResourceVersion))
	}
	if len(l.Items) == 0 {
		_, err := fmt.Fprintln(p.notes, "No events found.")
		return err
	}
	return p.table.print(eventTable(l.Items, p.o.all, p.now())...)
}

// one prints one event of a watch.
func (p *eventPrinter) one(n nodeapi.EventNotification) error {
	if n.Missed > 0 {
		_, err := fmt.Fprintf(p.notes, "warning: %d events dropped, the client is too slow\n", n.Missed)
		return err
	}
	if n.Event == nil || !p.o.takes(n.Event) {
		return nil
	}
	switch p.o.format {
	case "yaml":
		if _, err := io.WriteString(p.out, "---\n"); err != nil {
			return err
		}
		return encode(p.out, p.o.format, n.Event)
	case "json":
		return encode(p.out, p.o.format, n.Event)
	}
	rows := eventTable([]corev1.Event{*n.Event}, p.o.all, p.now())
	if p.table.widths != nil {
		rows = rows[1:]
	} else {
		for header, width := range map[string]int{
			"NAMESPACE": 12, "LAST SEEN": 22, "TYPE": len(corev1.EventTypeWarning), "REASON": 22, "OBJECT": 24,
		} {
			p.table.least(header, width)
		}
	}
	return p.table.print(rows...)
}

func eventTable(events []corev1.Event, all bool, now time.Time) [][]string {
	rows := [][]string{{"LAST SEEN", "TYPE", "REASON", "OBJECT", "MESSAGE"}}
	for _, e := range byLastSeen(events) {
		o := e.InvolvedObject
		rows = append(
			rows,
			[]string{
				eventAge(e, now),
				e.Type,
				e.Reason,
				strings.ToLower(o.Kind) + "/" + o.Name,
				strings.TrimSpace(e.Message),
			},
		)
	}
	if all {
		rows[0] = append([]string{"NAMESPACE"}, rows[0]...)
		for i, e := range byLastSeen(events) {
			rows[i+1] = append([]string{e.Namespace}, rows[i+1]...)
		}
	}
	return rows
}

func byLastSeen(events []corev1.Event) []corev1.Event {
	return slices.SortedStableFunc(slices.Values(events), func(a, b corev1.Event) int {
		return cmp.Compare(lastSeen(a).UnixNano(), lastSeen(b).UnixNano())
	})
}

// lastSeen and firstSeen read the old or the new fields of an event.
func lastSeen(e corev1.Event) time.Time {
	switch {
	case e.Series != nil && !e.Series.LastObservedTime.IsZero():
		return e.Series.LastObservedTime.Time
	case !e.LastTimestamp.IsZero():
		return e.LastTimestamp.Time
	default:
		return firstSeen(e)
	}
}

func firstSeen(e corev1.Event) time.Time {
	if !e.FirstTimestamp.IsZero() {
		return e.FirstTimestamp.Time
	}
	return e.EventTime.Time
}

// eventAge is the time since the last occurrence and, for a repeated event, the count.
func eventAge(e corev1.Event, now time.Time) string {
	count := e.Count
	if e.Series != nil {
		count = e.Series.Count
	}
	age := ago(now, lastSeen(e))
	if count > 1 {
		age = fmt.Sprintf("%s (x%d over %s)", age, count, ago(now, firstSeen(e)))
	}
	return age
}
