package console

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"berth/nodeapi"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
)

func (c *console) events() *cobra.Command {
	var namespace, format string
	var all bool
	cmd := &cobra.Command{
		Use:   "events [POD]",
		Short: "Show the events of this node, or of one pod",
		Args:  cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := checkFormat(format, "json", "yaml"); err != nil {
				return err
			}
			req := nodeapi.EventsRequest{Namespace: namespace}
			if all {
				req.Namespace = ""
			}
			if len(args) == 1 {
				t, err := targetOf(cmd, namespace, args[0])
				if err != nil {
					return err
				}
				req = nodeapi.EventsRequest{Namespace: t.namespace, Pod: t.name}
			}
			client, err := c.dial()
			if err != nil {
				return err
			}
			defer client.Close()
			l, err := client.Events(cmd.Context(), req)
			if err != nil {
				return err
			}
			if format != "" {
				return encode(cmd.OutOrStdout(), format, listOf(append([]corev1.Event{}, l.Items...), l.ResourceVersion))
			}
			if len(l.Items) == 0 {
				_, err := fmt.Fprintln(cmd.ErrOrStderr(), "No events found.")
				return err
			}
			t := table{w: cmd.OutOrStdout()}
			return t.print(eventTable(l.Items, all, c.now())...)
		},
	}
	namespaceFlag(cmd, &namespace)
	cmd.Flags().BoolVarP(&all, "all-namespaces", "A", false, "show the events of all namespaces")
	cmd.Flags().StringVarP(&format, "output", "o", "", "json or yaml")
	c.complete(cmd)
	return cmd
}

func eventTable(events []corev1.Event, all bool, now time.Time) [][]string {
	rows := [][]string{{"LAST SEEN", "TYPE", "REASON", "OBJECT", "MESSAGE"}}
	for _, e := range byLastSeen(events) {
		o := e.InvolvedObject
		rows = append(rows, []string{eventAge(e, now), e.Type, e.Reason, strings.ToLower(o.Kind) + "/" + o.Name, strings.TrimSpace(e.Message)})
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

// lastSeen and firstSeen read the old fields of an event or the new ones.
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

// eventAge is when an event was last seen and, of a repeated one, how often.
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
