package cli

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"berth/nodeapi"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
)

func (c *factory) describe() *cobra.Command {
	return podView[nodeapi.Description]{
		use:   "describe POD|TYPE/NAME",
		short: "Show details of a pod or a workload and its events",
		long:  "Show details of a pod or a workload and its events.\n\n" + workloadArgs,
		fetch: func(ctx context.Context, client *nodeapi.Client, t target) (nodeapi.Description, error) {
			return client.Describe(ctx, t.namespace, t.name)
		},
		text: func(t target, _ screen, d nodeapi.Description) (string, error) {
			if d.Pod == nil {
				return "", fmt.Errorf("invalid response of the agent: no pod %s/%s", t.namespace, t.name)
			}
			return describeText(d, c.now())
		},
		workload: func(ctx context.Context, client *nodeapi.Client, kind string, t target) (objectView, error) {
			d, err := client.DescribeWorkload(ctx, kind, t.namespace, t.name)
			return objectView{d, func() (string, error) { return workloadText(d, c.now()) }}, err
		},
	}.command(c)
}

func describeText(d nodeapi.Description, now time.Time) (string, error) {
	p := d.Pod
	var b strings.Builder
	fields := podFields(d, now)
	if len(p.Spec.InitContainers) > 0 {
		fields = append(
			fields,
			field{
				key:   "Init Containers",
				under: containerFields(p.Spec.InitContainers, p.Status.InitContainerStatuses, d.NextRetry, now),
			},
		)
	}
	fields = append(
		fields,
		field{
			key:   "Containers",
			under: containerFields(p.Spec.Containers, p.Status.ContainerStatuses, d.NextRetry, now),
		},
	)
	if len(p.Spec.EphemeralContainers) > 0 {
		debug := make([]corev1.Container, len(p.Spec.EphemeralContainers))
		for i, e := range p.Spec.EphemeralContainers {
			debug[i] = corev1.Container(e.EphemeralContainerCommon)
		}
		fields = append(
			fields,
			field{
				key:   "Ephemeral Containers",
				under: containerFields(debug, p.Status.EphemeralContainerStatuses, d.NextRetry, now),
			},
		)
	}
	writeFields(&b, "", fields)
	if err := writeConditions(&b, p.Status.Conditions); err != nil {
		return "", err
	}
	writeFields(&b, "", tailFields(p))
	writeWarnings(&b, d.Warnings)
	if err := writeEvents(&b, d.Events, now); err != nil {
		return "", err
	}
	return b.String(), nil
}

func podFields(d nodeapi.Description, now time.Time) []field {
	p := d.Pod
	priority := "0"
	if p.Spec.Priority != nil {
		priority = fmt.Sprint(*p.Spec.Priority)
	}
	fields := []field{
		{key: "Name", value: p.Name},
		{key: "Namespace", value: p.Namespace},
		{key: "UID", value: orNone(string(p.UID))},
		{key: "Source", value: orNone(d.Source)},
		{key: "Priority", value: priority},
		{key: "Node", value: orNone(strings.Trim(p.Spec.NodeName+"/"+p.Status.HostIP, "/"))},
		{key: "Start Time", value: moment(startOf(p))},
	}
	fields = append(fields, linesField("Labels", pairs(p.Labels)), linesField("Annotations", pairs(p.Annotations)))
	status := string(p.Status.Phase)
	if p.DeletionTimestamp != nil {
		status = "Terminating (lasts " + ago(now, p.DeletionTimestamp.Time) + ")"
		if p.DeletionTimestamp.After(now) {
			status = "Terminating (until " + clockIn(now, p.DeletionTimestamp.Time) + ")"
		}
	}
	fields = append(fields, field{key: "Status", value: orNone(status)})
	if p.DeletionGracePeriodSeconds != nil {
		fields = append(
			fields,
			field{key: "Termination Grace Period", value: fmt.Sprintf("%ds", *p.DeletionGracePeriodSeconds)},
		)
	}
	if p.Status.Reason != "" {
		fields = append(fields, field{key: "Reason", value: p.Status.Reason})
	}
	if p.Status.Message != "" {
		fields = append(fields, field{key: "Message", value: p.Status.Message})
	}
	fields = append(fields, field{key: "IP", value: orNone(p.Status.PodIP)})
	if len(p.Status.PodIPs) > 1 {
		var ips []field
		for _, ip := range p.Status.PodIPs {
			ips = append(ips, field{key: "IP", value: ip.IP})
		}
		fields = append(fields, field{key: "IPs", under: ips})
	}
	return fields
}

func startOf(p *corev1.Pod) time.Time {
	if p.Status.StartTime == nil {
		return time.Time{}
	}
	return p.Status.StartTime.Time
}

// linesField has one value per line.
func linesField(key string, values []string) field {
	if len(values) == 0 {
		return field{key: key, value: none}
	}
	return field{key: key, value: values[0], more: values[1:]}
}

func pairs(m map[string]string) []string {
	lines := make([]string, 0, len(m))
	for _, k := range slices.Sorted(maps.Keys(m)) {
		lines = append(lines, k+"="+m[k])
	}
	return lines
}

func moment(t time.Time) string {
	if t.IsZero() {
		return none
	}
	return t.Format(time.RFC1123Z)
}

func writeConditions(b *strings.Builder, conditions []corev1.PodCondition) error {
	if len(conditions) == 0 {
		return nil
	}
	b.WriteString("Conditions:\n")
	rows := [][]string{{"Type", "Status", "Reason", "Message"}}
	for _, c := range conditions {
		rows = append(rows, []string{string(c.Type), string(c.Status), c.Reason, c.Message})
	}
	t := table{w: b, indent: "  "}
	return t.print(rows...)
}

func tailFields(p *corev1.Pod) []field {
	volumes := field{key: "Volumes", value: none}
	if len(p.Spec.Volumes) > 0 {
		volumes = field{key: "Volumes"}
		for _, v := range p.Spec.Volumes {
			volumes.under = append(volumes.under, field{key: v.Name, under: volumeFields(v.VolumeSource)})
		}
	}
	fields := []field{volumes, {key: "QoS Class", value: orNone(string(p.Status.QOSClass))}}
	var tolerations []string
	for _, t := range p.Spec.Tolerations {
		tolerations = append(tolerations, tolerationText(t))
	}
	return append(
		fields,
		linesField("Node-Selectors", pairs(p.Spec.NodeSelector)),
		linesField("Tolerations", tolerations),
	)
}

func tolerationText(t corev1.Toleration) string {
	text := t.Key
	if t.Value != "" {
		text += "=" + t.Value
	}
	if t.Effect != "" {
		text += ":" + string(t.Effect)
	}
	if t.Operator == corev1.TolerationOpExists {
		text += " op=Exists"
	}
	if t.TolerationSeconds != nil {
		text += fmt.Sprintf(" for %ds", *t.TolerationSeconds)
	}
	return strings.TrimSpace(text)
}

func writeEvents(b *strings.Builder, events []corev1.Event, now time.Time) error {
	if len(events) == 0 {
		b.WriteString("Events:  " + none + "\n")
		return nil
	}
	b.WriteString("Events:\n")
	rows := [][]string{{"Type", "Reason", "Age", "From", "Message"}}
	for _, e := range byLastSeen(events) {
		from := e.Source.Component
		if from == "" {
			from = e.ReportingController
		}
		rows = append(rows, []string{e.Type, e.Reason, eventAge(e, now), from, strings.TrimSpace(e.Message)})
	}
	t := table{w: b, indent: "  "}
	return t.print(rows...)
}
