package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"berth/nodeapi"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/labels"
)

// psOptions are the flags of ps.
type psOptions struct {
	namespace, selector, format string
	all, watch, bare, labels    bool
	names                       []string // names of the pods to list; empty: all
}

func (c *factory) ps() *cobra.Command {
	var o psOptions
	cmd := &cobra.Command{
		Use:   "ps [POD...]",
		Short: "List the pods on this node",
		RunE: func(cmd *cobra.Command, args []string) error {
			for i, name := range args { // as in kubectl get, pod/web is web
				if kind, bare, two := strings.Cut(name, "/"); two &&
					slices.Contains([]string{"pod", "pods", "po"}, kind) {
					args[i] = bare
				}
			}
			if o.names = args; len(args) > 0 && (o.all || o.selector != "") {
				return errors.New("a pod name cannot be used with --all-namespaces or --selector")
			}
			if err := checkFormat(o.format, "wide", "json", "yaml", "name"); err != nil {
				return err
			}
			client, err := c.dial()
			if err != nil {
				return err
			}
			defer client.Close()
			p := &podPrinter{out: cmd.OutOrStdout(), notes: cmd.ErrOrStderr(), now: c.now, o: o}
			p.table.w, p.table.bare = p.out, o.bare
			if o.watch {
				p.table.least("STATUS", len("ContainerCreating"))
			}
			if o.watch {
				return p.follow(cmd.Context(), client)
			}
			return p.once(cmd.Context(), client)
		},
	}
	f := cmd.Flags()
	namespaceFlag(cmd, &o.namespace)
	f.BoolVarP(&o.all, "all-namespaces", "A", false, "list the pods of all namespaces")
	f.StringVarP(&o.selector, "selector", "l", "", "label selector, such as app=web,tier!=db")
	f.StringVarP(&o.format, "output", "o", "", "output format: wide, json, yaml or name")
	f.BoolVarP(&o.watch, "watch", "w", false, "watch for changes after listing")
	f.BoolVar(&o.bare, "no-headers", false, "do not print headers")
	f.BoolVar(&o.labels, "show-labels", false, "print the labels in the last column")
	c.complete(cmd)
	cmd.ValidArgsFunction = c.completePods
	return cmd
}

// shows reports whether a pod is selected by name.
func (o psOptions) shows(pod *corev1.Pod) bool {
	return len(o.names) == 0 || slices.Contains(o.names, pod.Name)
}

// missing returns an error for the names of pods that do not exist, or nil.
func (o psOptions) missing(pods []corev1.Pod) error {
	var errs []error
	for _, name := range o.names {
		if !slices.ContainsFunc(pods, func(p corev1.Pod) bool { return p.Name == name }) {
			errs = append(errs, apierrors.NewNotFound(corev1.Resource("pods"), name))
		}
	}
	return errors.Join(errs...)
}

func (o psOptions) request() nodeapi.PodsRequest {
	r := nodeapi.PodsRequest{Namespace: o.namespace, Selector: o.selector}
	if o.all {
		r.Namespace = ""
	}
	return r
}

// podPrinter prints pods in the requested format.
type podPrinter struct {
	out, notes io.Writer
	now        func() time.Time
	o          psOptions
	table      table
}

func (p *podPrinter) once(ctx context.Context, client *nodeapi.Client) error {
	pods, err := client.Pods(ctx, p.o.request())
	if err != nil {
		return err
	}
	shown := slices.DeleteFunc(pods.Items, func(x corev1.Pod) bool { return !p.o.shows(&x) })
	missing := p.o.missing(shown)
	if missing == nil || len(shown) > 0 {
		if err := p.list(shown, pods.ResourceVersion); err != nil {
			return err
		}
	}
	if missing != nil {
		return missing
	}
	return p.node(ctx, client)
}

// follow prints the existing pods, then each change in a new row.
func (p *podPrinter) follow(ctx context.Context, client *nodeapi.Client) error {
	var first []corev1.Pod
	synced := false
	return client.WatchPods(ctx, p.o.request(), func(e nodeapi.PodEvent) error {
		switch {
		case e.Type == nodeapi.Synced && !synced:
			synced = true
			if p.o.format == "json" || p.o.format == "yaml" {
				return p.each(first)
			}
			if err := p.list(first, ""); err != nil {
				return err
			}
			return p.node(ctx, client)
		case e.Pod == nil || !p.o.shows(e.Pod):
			return nil
		case !synced:
			first = append(first, *e.Pod)
			return nil
		default:
			return p.each([]corev1.Pod{*e.Pod})
		}
	})
}

// list prints all pods.
func (p *podPrinter) list(pods []corev1.Pod, version string) error {
	slices.SortStableFunc(pods, func(a, b corev1.Pod) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	switch p.o.format {
	case "json", "yaml":
		if len(p.o.names) == 1 && len(pods) == 1 { // the requested object, not a list
			return encode(p.out, p.o.format, pods[0])
		}
		return encode(p.out, p.o.format, listOf(append([]corev1.Pod{}, pods...), version))
	case "name":
		return p.each(pods)
	}
	if len(pods) == 0 {
		where := " in " + p.o.namespace + " namespace"
		if p.o.all {
			where = ""
		}
		_, err := fmt.Fprintf(p.notes, "No pods found%s.\n", where)
		return err
	}
	return p.table.print(append([][]string{p.header()}, p.rows(pods)...)...)
}

// each prints pods one by one.
func (p *podPrinter) each(pods []corev1.Pod) error {
	switch p.o.format {
	case "json", "yaml":
		for _, pod := range pods {
			if p.o.format == "yaml" {
				if _, err := io.WriteString(p.out, "---\n"); err != nil {
					return err
				}
			}
			if err := encode(p.out, p.o.format, pod); err != nil {
				return err
			}
		}
		return nil
	case "name":
		for _, pod := range pods {
			if _, err := fmt.Fprintln(p.out, "pod/"+clean(pod.Name)); err != nil {
				return err
			}
		}
		return nil
	}
	rows := p.rows(pods)
	if p.table.widths == nil { // the watch started without pods
		rows = append([][]string{p.header()}, rows...)
	}
	return p.table.print(rows...)
}

func (p *podPrinter) header() []string {
	h := []string{"NAME", "READY", "STATUS", "RESTARTS", "AGE"}
	if p.o.all {
		h = append([]string{"NAMESPACE"}, h...)
	}
	if p.o.format == "wide" {
		h = append(h, "IP", "NODE", "NOMINATED NODE", "READINESS GATES")
	}
	if p.o.labels {
		h = append(h, "LABELS")
	}
	return h
}

func (p *podPrinter) rows(pods []corev1.Pod) [][]string {
	rows := make([][]string, 0, len(pods))
	for i := range pods {
		rows = append(rows, p.row(&pods[i]))
	}
	return rows
}

func (p *podPrinter) row(pod *corev1.Pod) []string {
	s := summarize(pod)
	restarts := fmt.Sprint(s.restarts)
	if s.restarts > 0 && !s.lastRestart.IsZero() {
		restarts += " (" + ago(p.now(), s.lastRestart) + " ago)"
	}
	row := []string{
		pod.Name,
		fmt.Sprintf("%d/%d", s.ready, s.total),
		s.status,
		restarts,
		ago(p.now(), pod.CreationTimestamp.Time),
	}
	if p.o.all {
		row = append([]string{pod.Namespace}, row...)
	}
	if p.o.format == "wide" {
		row = append(
			row,
			orNone(pod.Status.PodIP),
			orNone(pod.Spec.NodeName),
			orNone(pod.Status.NominatedNodeName),
			gates(pod),
		)
	}
	if p.o.labels {
		row = append(row, orNone(labels.Set(pod.Labels).String()))
	}
	return row
}

// gates counts the readiness gates that are true.
func gates(pod *corev1.Pod) string {
	if len(pod.Spec.ReadinessGates) == 0 {
		return none
	}
	open := 0
	for _, g := range pod.Spec.ReadinessGates {
		if isTrue(pod, g.ConditionType) {
			open++
		}
	}
	return fmt.Sprintf("%d/%d", open, len(pod.Spec.ReadinessGates))
}

// node prints problems of the node below the table, because an invalid manifest explains why a pod
// is missing from it.
func (p *podPrinter) node(ctx context.Context, client *nodeapi.Client) error {
	if p.o.format != "" && p.o.format != "wide" {
		return nil
	}
	n, err := client.Node(ctx)
	if err != nil {
		return err
	}
	if len(n.InvalidManifests)+len(n.Warnings) == 0 {
		return nil
	}
	var b strings.Builder
	b.WriteString("\n")
	for _, f := range n.InvalidManifests {
		b.WriteString("Invalid manifest: " + clean(badFile(f, p.now())) + "\n")
	}
	writeWarnings(&b, n.Warnings)
	_, err = io.WriteString(p.notes, b.String())
	return err
}

func badFile(f nodeapi.InvalidManifest, now time.Time) string {
	text := f.Path
	if f.Line > 0 {
		text += fmt.Sprintf(":%d", f.Line)
	}
	if f.Field != "" {
		text += ": " + f.Field
	}
	text += ": " + f.Message
	var more []string
	if !f.Since.IsZero() {
		more = append(more, "for "+ago(now, f.Since))
	}
	if f.LastValidInUse {
		more = append(more, "last valid version still in use")
	}
	if len(more) > 0 {
		text += " (" + strings.Join(more, "; ") + ")"
	}
	return text
}

func writeWarnings(b *strings.Builder, warnings []nodeapi.Warning) {
	for _, w := range warnings {
		text := w.Message
		if w.Field != "" {
			text = w.Field + ": " + text
		}
		if w.Object != "" {
			text = w.Object + ": " + text
		}
		b.WriteString("Warning: " + clean(text) + "\n")
	}
}
