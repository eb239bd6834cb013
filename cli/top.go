package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"berth/nodeapi"

	"github.com/spf13/cobra"
)

// topOptions are the flags of top.
type topOptions struct {
	namespace, selector, format, sortBy string
	all, containers, headerless, sum    bool
	window                              time.Duration
}

func (c *factory) top() *cobra.Command {
	var o topOptions
	cmd := &cobra.Command{
		Use:   "top [POD]",
		Short: "Show the resource usage of pods and containers",
		Long: `Show the resource usage of pods, measured over a short window: CPU, memory working set, disk I/O,
processes, and pressure stall information (PSI): the share of the last ten seconds in which tasks waited for CPU,
memory or I/O. "-" means that the kernel does not provide the value: with cgroup v1, newer kernels count I/O
only for devices with a limit, and writes through the page cache are never counted. The values are read
from cgroup files. The runtime is not queried.`,
		Example: `  berth top
  berth top -A --sort-by cpu
  berth top web --containers`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return o.run(cmd, c, args)
		},
	}
	f := cmd.Flags()
	namespaceFlag(cmd, &o.namespace)
	f.BoolVarP(&o.all, "all-namespaces", "A", false, "show the pods of all namespaces")
	f.StringVarP(&o.selector, "selector", "l", "", "label selector, such as app=web,tier!=db")
	f.StringVarP(&o.format, "output", "o", "", "output format: json or yaml")
	f.BoolVar(&o.containers, "containers", false, "print the usage of each container")
	f.StringVar(&o.sortBy, "sort-by", "", "sort in descending order by cpu, memory, io or processes")
	f.BoolVar(&o.headerless, "no-headers", false, "do not print headers")
	f.BoolVar(&o.sum, "sum", false, "print the sum in the last row")
	f.DurationVar(&o.window, "window", 500*time.Millisecond, "measurement window of rates")
	c.complete(cmd)
	fixed(cmd, "sort-by", "cpu", "memory", "io", "processes")
	fixed(cmd, "output", "json", "yaml")
	return cmd
}

func (o topOptions) run(cmd *cobra.Command, c *factory, args []string) error {
	if err := checkFormat(o.format, "json", "yaml"); err != nil {
		return err
	}
	if !slices.Contains([]string{"", "cpu", "memory", "io", "processes"}, o.sortBy) {
		return errors.New("--sort-by must be cpu, memory, io or processes")
	}
	if len(args) == 1 && (o.selector != "" || o.all) {
		return errors.New("a pod and -l or -A cannot be used together")
	}
	req := nodeapi.TopRequest{
		PodsRequest: nodeapi.PodsRequest{Namespace: o.namespace, Selector: o.selector},
		Window:      o.window,
	}
	if o.all {
		req.Namespace = ""
	}
	client, err := c.dial()
	if err != nil {
		return err
	}
	defer client.Close()
	top, err := o.fetch(cmd.Context(), client, cmd, req, args)
	if err != nil {
		return err
	}
	o.sort(top.Pods)
	if o.format != "" {
		return encode(cmd.OutOrStdout(), o.format, top)
	}
	if len(top.Pods) == 0 {
		where := " in " + o.namespace + " namespace"
		if o.all {
			where = ""
		}
		_, err := fmt.Fprintf(cmd.ErrOrStderr(), "No pods found%s.\n", where)
		return err
	}
	return o.print(cmd.OutOrStdout(), top.Pods)
}

// fetch measures all pods, or one pod, which must exist.
func (o topOptions) fetch(
	ctx context.Context,
	client *nodeapi.Client,
	cmd *cobra.Command,
	req nodeapi.TopRequest,
	args []string,
) (nodeapi.Top, error) {
	if len(args) == 0 {
		return client.Top(ctx, req)
	}
	t, err := targetOf(cmd, o.namespace, args[0])
	if err != nil {
		return nodeapi.Top{}, err
	}
	if _, err := client.Pod(ctx, t.namespace, t.name); err != nil {
		return nodeapi.Top{}, err
	}
	req.Namespace = t.namespace
	top, err := client.Top(ctx, req)
	top.Pods = slices.DeleteFunc(top.Pods, func(p nodeapi.PodTop) bool { return p.Name != t.name })
	return top, err
}

// sort sorts pods and their containers in descending order, if requested.
func (o topOptions) sort(pods []nodeapi.PodTop) {
	key := func(r nodeapi.Resources) float64 {
		switch o.sortBy {
		case "cpu":
			return float64(r.CPUNanoCores)
		case "memory":
			return float64(r.WorkingSetBytes)
		case "io":
			return r.ReadBytesPerSecond + r.WriteBytesPerSecond
		case "processes":
			return float64(r.Processes)
		}
		return 0
	}
	slices.SortStableFunc(pods, func(a, b nodeapi.PodTop) int {
		return cmp.Or(
			cmp.Compare(key(b.Resources), key(a.Resources)),
			cmp.Compare(a.Namespace, b.Namespace),
			cmp.Compare(a.Name, b.Name),
		)
	})
	for _, p := range pods {
		slices.SortStableFunc(p.Containers, func(a, b nodeapi.ContainerTop) int {
			return cmp.Or(cmp.Compare(key(b.Resources), key(a.Resources)), cmp.Compare(a.Name, b.Name))
		})
	}
}

func (o topOptions) print(w io.Writer, pods []nodeapi.PodTop) error {
	header := []string{"CPU(cores)", "MEMORY(bytes)", "READ(/s)", "WRITE(/s)", "PROCS", "PSI(cpu/mem/io %)"}
	var rows [][]string
	var total nodeapi.Resources
	add := func(p nodeapi.PodTop, container string, r nodeapi.Resources) {
		var head []string
		if o.all {
			head = append(head, p.Namespace)
		}
		if head = append(head, p.Name); o.containers {
			head = append(head, container)
		}
		rows = append(rows, append(head, cells(r)...))
		total.CPUNanoCores += r.CPUNanoCores
		total.WorkingSetBytes += r.WorkingSetBytes
		total.ReadBytesPerSecond += r.ReadBytesPerSecond
		total.WriteBytesPerSecond += r.WriteBytesPerSecond
		total.Processes += r.Processes
		total.IOUnavailable = total.IOUnavailable || r.IOUnavailable
	}
	for _, p := range pods {
		if !o.containers {
			add(p, "", p.Resources)
			continue
		}
		for _, k := range p.Containers {
			add(p, k.Name, k.Resources)
		}
	}
	if o.sum {
		blank := make([]string, len(o.columns()))
		rows = append(rows, slices.Concat(blank, cells(total)))
	}
	if !o.headerless {
		rows = append([][]string{append(o.columns(), header...)}, rows...)
	}
	t := table{w: w}
	return t.print(rows...)
}

// columns are the headers of the identifying columns.
func (o topOptions) columns() []string {
	switch {
	case o.all && o.containers:
		return []string{"NAMESPACE", "POD", "NAME"}
	case o.all:
		return []string{"NAMESPACE", "NAME"}
	case o.containers:
		return []string{"POD", "NAME"}
	}
	return []string{"NAME"}
}

// cells formats usage like kubectl top: 12m, 34Mi.
func cells(r nodeapi.Resources) []string {
	psi := "-"
	if p := r.PSI; p != nil {
		psi = fmt.Sprintf("%.0f/%.0f/%.0f", p.CPU, p.Memory, p.IO)
	}
	read, write := perSecond(r.ReadBytesPerSecond), perSecond(r.WriteBytesPerSecond)
	if r.IOUnavailable {
		read, write = "-", "-"
	}
	return []string{
		fmt.Sprintf("%dm", (r.CPUNanoCores+999_999)/1_000_000), fmt.Sprintf("%dMi", (r.WorkingSetBytes+1<<20-1)>>20),
		read, write, fmt.Sprint(r.Processes), psi,
	}
}

// perSecond formats bytes per second.
func perSecond(n float64) string {
	switch {
	case n >= 1<<20:
		return fmt.Sprintf("%.1fMi", n/(1<<20))
	case n >= 1<<10:
		return fmt.Sprintf("%.0fKi", n/(1<<10))
	}
	return fmt.Sprintf("%.0f", n)
}
