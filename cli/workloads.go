package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"berth/nodeapi"

	"github.com/spf13/cobra"
)

// workloadKinds holds the names of the kinds on the command line, in the order in which they are listed.
var workloadKinds = []struct {
	kind  string
	names []string // the first one is used in output
}{
	{"Deployment", []string{"deployment.apps", "deployment", "deployments", "deploy"}},
	{"ReplicaSet", []string{"replicaset.apps", "replicaset", "replicasets", "rs"}},
	{"StatefulSet", []string{"statefulset.apps", "statefulset", "statefulsets", "sts"}},
	{"DaemonSet", []string{"daemonset.apps", "daemonset", "daemonsets", "ds"}},
	{"Job", []string{"job.batch", "job", "jobs"}},
	{"CronJob", []string{"cronjob.batch", "cronjob", "cronjobs", "cj"}},
}

// workloadKind returns the kind with a name on the command line, or "".
func workloadKind(name string) string {
	for _, k := range workloadKinds {
		if slices.Contains(k.names, strings.ToLower(name)) {
			return k.kind
		}
	}
	return ""
}

// outputName is the name of a workload in output, such as deployment.apps/web.
func outputName(w nodeapi.Workload) string {
	for _, k := range workloadKinds {
		if k.kind == w.Kind {
			return k.names[0] + "/" + clean(w.Name)
		}
	}
	return clean(w.Name)
}

// workloadTarget parses TYPE/NAME or TYPE NAME.
func workloadTarget(args []string) (kind, name string, err error) {
	typed, name, ok := kindAndName(args)
	if !ok {
		return "", "", fmt.Errorf("a workload is required: TYPE/NAME, such as deployment/web")
	}
	if kind = workloadKind(typed); kind == "" {
		return "", "", fmt.Errorf("the agent doesn't have a resource type %q", typed)
	}
	return kind, name, nil
}

func (c *factory) get() *cobra.Command {
	var namespace, format string
	var all bool
	cmd := &cobra.Command{
		Use:   "get TYPE[/NAME] [NAME...]",
		Short: "List the workloads of manifest files on this node",
		Long: `List the Deployments, ReplicaSets, StatefulSets, DaemonSets, Jobs and CronJobs that this node runs from
manifest files. TYPE is one of these kinds, its plural or its short name as in kubectl, or all. "berth ps"
lists pods.`,
		Example: `  berth get deployments
  berth get deployments -o wide
  berth get deployment/web -o yaml
  berth get all -A`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := checkFormat(format, "wide", "json", "yaml", "name"); err != nil {
				return err
			}
			kind, names := args[0], args[1:]
			if before, after, two := strings.Cut(kind, "/"); two {
				kind, names = before, append([]string{after}, names...)
			}
			if kind != "all" {
				found := workloadKind(kind)
				if found == "" {
					return fmt.Errorf("the agent doesn't have a resource type %q; use ps for pods", kind)
				}
				kind = found
			}
			client, err := c.dial()
			if err != nil {
				return err
			}
			defer client.Close()
			req := nodeapi.WorkloadsRequest{Namespace: namespace}
			if all {
				req.Namespace = ""
			}
			list, err := client.Workloads(cmd.Context(), req)
			if err != nil {
				return err
			}
			list = slices.DeleteFunc(list, func(w nodeapi.Workload) bool {
				return kind != "all" && w.Kind != kind || len(names) > 0 && !slices.Contains(names, w.Name)
			})
			for _, name := range names {
				if !slices.ContainsFunc(list, func(w nodeapi.Workload) bool { return w.Name == name }) {
					return fmt.Errorf("%s %q not found", kind, name)
				}
			}
			return printWorkloads(cmd.OutOrStdout(), cmd.ErrOrStderr(), list, format, all, len(names) == 1, c.now())
		},
	}
	cmd.Flags().StringVarP(&namespace, "namespace", "n", "default", "namespace of the workload")
	cmd.Flags().BoolVarP(&all, "all-namespaces", "A", false, "list the workloads of all namespaces")
	cmd.Flags().StringVarP(&format, "output", "o", "", "output format: wide, json, yaml or name")
	return cmd
}

// printWorkloads prints workloads: one table for each kind, and below it overrides and warnings.
func printWorkloads(out, notes io.Writer, list []nodeapi.Workload, format string, namespaces, single bool,
	now time.Time) error {
	switch format {
	case "json", "yaml":
		objects := make([]json.RawMessage, len(list))
		for i, w := range list {
			objects[i] = w.Object
		}
		if single && len(objects) == 1 {
			return encode(out, format, objects[0])
		}
		return encode(out, format, listOf(objects, ""))
	case "name":
		for _, w := range list {
			if _, err := fmt.Fprintln(out, outputName(w)); err != nil {
				return err
			}
		}
		return nil
	}
	if len(list) == 0 {
		_, err := fmt.Fprintln(notes, "No workloads found.")
		return err
	}
	first := true
	for _, k := range workloadKinds {
		rows := [][]string{workloadHeader(k.kind, format == "wide")}
		for _, w := range list {
			if w.Kind != k.kind {
				continue
			}
			row, err := workloadRow(w, now, format == "wide")
			if err != nil {
				return fmt.Errorf("invalid response of the agent: %w", err)
			}
			if namespaces {
				row = append([]string{w.Namespace}, row...)
			}
			rows = append(rows, row)
		}
		if len(rows) == 1 {
			continue
		}
		if namespaces {
			rows[0] = append([]string{"NAMESPACE"}, rows[0]...)
		}
		if !first {
			if _, err := fmt.Fprintln(out); err != nil {
				return err
			}
		}
		first = false
		t := table{w: out}
		if err := t.print(rows...); err != nil {
			return err
		}
	}
	return workloadNotes(notes, list)
}

// workloadNotes prints what users must know beside the state of workloads.
func workloadNotes(out io.Writer, list []nodeapi.Workload) error {
	var b strings.Builder
	for _, w := range list {
		for _, command := range slices.Sorted(maps.Keys(w.Overrides)) {
			fmt.Fprintf(&b, "Override: %s: %s until %s changes (berth %s)\n", outputName(w),
				clean(w.Overrides[command]), clean(w.File), command)
		}
		writeWarnings(&b, w.Warnings)
	}
	if b.Len() == 0 {
		return nil
	}
	_, err := io.WriteString(out, "\n"+b.String())
	return err
}

// findWorkload returns one workload.
func findWorkload(ctx context.Context, client *nodeapi.Client, kind, namespace, name string, wait bool) (
	nodeapi.Workload, error) {
	list, err := client.Workloads(ctx, nodeapi.WorkloadsRequest{Namespace: namespace, Wait: wait})
	if err != nil {
		return nodeapi.Workload{}, err
	}
	for _, w := range list {
		if w.Kind == kind && w.Name == name {
			return w, nil
		}
	}
	return nodeapi.Workload{}, fmt.Errorf("%s %q not found", kind, name)
}

// completePodsAndWorkloads completes the first argument with the names of pods and with TYPE/NAME of workloads.
func (c *factory) completePodsAndWorkloads(cmd *cobra.Command, args []string, typed string) (
	[]string, cobra.ShellCompDirective) {
	names, directive := c.completePods(cmd, args, typed)
	if len(args) > 0 {
		return names, directive
	}
	client, err := c.dial()
	if err != nil {
		return names, directive
	}
	defer client.Close()
	ctx, cancel := completionContext(cmd)
	defer cancel()
	list, err := client.Workloads(ctx, nodeapi.WorkloadsRequest{Namespace: cmd.Flag("namespace").Value.String()})
	if err != nil {
		return names, directive
	}
	prefix, _, two := strings.Cut(typed, "/")
	for _, w := range list {
		for _, k := range workloadKinds {
			switch {
			case k.kind != w.Kind:
			case two && slices.Contains(k.names, prefix):
				names = append(names, prefix+"/"+w.Name)
			case !two:
				names = append(names, k.names[1]+"/"+w.Name)
			}
		}
	}
	return matching(names, typed), directive
}

// completeAll completes the first argument with the names of pods, and with TYPE/NAME of workloads and Services.
func (c *factory) completeAll(cmd *cobra.Command, args []string, typed string) ([]string, cobra.ShellCompDirective) {
	names, directive := c.completePodsAndWorkloads(cmd, args, typed)
	prefix, _, two := strings.Cut(typed, "/")
	if len(args) > 0 || two && !isServiceKind(prefix) {
		return names, directive
	}
	client, err := c.dial()
	if err != nil {
		return names, directive
	}
	defer client.Close()
	ctx, cancel := completionContext(cmd)
	defer cancel()
	list, err := client.Services(ctx, cmd.Flag("namespace").Value.String(), "")
	if err != nil {
		return names, directive
	}
	if !two {
		prefix = serviceNames[0]
	}
	for _, s := range list.Services {
		names = append(names, prefix+"/"+s.Name)
	}
	return matching(names, typed), directive
}
