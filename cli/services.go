package cli

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"

	"berth/nodeapi"

	"github.com/spf13/cobra"
)

// serviceNames are the names of the kind Service on the command line.
var serviceNames = []string{"service", "services", "svc"}

func isServiceKind(name string) bool { return slices.Contains(serviceNames, strings.ToLower(name)) }

func (c *factory) services() *cobra.Command {
	var namespace, format string
	var all bool
	cmd := &cobra.Command{
		Use:   "services [NAME]",
		Short: "Show Services, their endpoints, and how this node routes them",
		Long: `Show the Services that this node knows. With NAME, show what happens to traffic for each address of the
Service, its endpoints, and why the node does not use some of them.`,
		Example: `  berth services -A
  berth services web -n shop`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := checkFormat(format, "json", "yaml"); err != nil {
				return err
			}
			name := ""
			if len(args) == 1 {
				name = args[0]
				if kind, after, two := strings.Cut(name, "/"); two && isServiceKind(kind) {
					name = after
				}
			}
			if all {
				namespace = ""
			}
			client, err := c.dial()
			if err != nil {
				return err
			}
			defer client.Close()
			list, err := client.Services(cmd.Context(), namespace, name)
			switch {
			case err != nil:
				return err
			case format != "":
				return encode(cmd.OutOrStdout(), format, list)
			case name != "":
				return writeService(cmd.OutOrStdout(), list)
			}
			return writeServices(cmd.OutOrStdout(), cmd.ErrOrStderr(), list)
		},
	}
	cmd.Flags().StringVarP(&namespace, "namespace", "n", "default", "namespace of the Services")
	cmd.Flags().BoolVarP(&all, "all-namespaces", "A", false, "show the Services of all namespaces")
	cmd.Flags().StringVarP(&format, "output", "o", "", "output format: json or yaml")
	fixed(cmd, "output", "json", "yaml")
	return cmd
}

// writeServices prints a table of Services.
func writeServices(out, notes io.Writer, list nodeapi.NodeServices) error {
	if err := writeProxyState(notes, list); err != nil {
		return err
	}
	if len(list.Services) == 0 {
		_, err := fmt.Fprintln(notes, "No Services found.")
		return err
	}
	rows := [][]string{{"NAMESPACE", "NAME", "TYPE", "CLUSTER-IP", "EXTERNAL-IP", "PORTS", "ENDPOINTS USED"}}
	for _, s := range list.Services {
		used, total := 0, 0
		var ports []string
		for _, p := range s.Ports {
			port := fmt.Sprintf("%d/%s", p.Port, p.Protocol)
			if len(ports) == 0 || ports[len(ports)-1] != port {
				ports = append(ports, port)
			}
			for _, e := range p.Endpoints {
				total++
				if e.Used {
					used++
				}
			}
		}
		rows = append(rows, []string{
			s.Namespace, s.Name, s.Type, orNone(strings.Join(s.ClusterIPs, ",")),
			orNone(strings.Join(s.ExternalIPs, ",")),
			orNone(strings.Join(ports, ",")), fmt.Sprintf("%d of %d", used, total),
		})
	}
	t := table{w: out}
	return t.print(rows...)
}

// writeProxyState says that Services are not routed, if so.
func writeProxyState(w io.Writer, list nodeapi.NodeServices) (err error) {
	switch {
	case list.Proxy == "off":
		_, err = fmt.Fprintln(w, "The service proxy of this node is off (serviceProxy): another program may "+
			"route Services.")
	case list.Proxy == "unknown":
		_, err = fmt.Fprintln(w, "The node has not reached its API server yet: Services are not routed.")
	case list.ProxyError != "":
		_, err = fmt.Fprintf(w, "The rules of the service proxy are not up to date: %s\n", clean(list.ProxyError))
	}
	return err
}

// writeService prints everything about the Services of a list.
func writeService(w io.Writer, list nodeapi.NodeServices) error {
	if err := writeProxyState(w, list); err != nil {
		return err
	}
	var b strings.Builder
	for i, s := range list.Services {
		if i > 0 {
			b.WriteString("\n")
		}
		fmt.Fprintf(&b, "%s/%s (%s)\n", clean(s.Namespace), clean(s.Name), clean(orNone(s.Type)))
		if s.NotRouted != "" {
			fmt.Fprintf(&b, "  not routed: %s\n", clean(s.NotRouted))
		}
		for _, text := range s.Problems {
			if text != s.NotRouted {
				fmt.Fprintf(&b, "  %s\n", clean(text))
			}
		}
		writeServiceDetails(&b, s)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// writeServiceDetails prints the addresses and the endpoints of a Service.
func writeServiceDetails(b *strings.Builder, s nodeapi.Service) {
	for _, f := range s.Frontends {
		fmt.Fprintf(b, "  %s %s/%s: %s\n", clean(f.Kind), clean(f.Address), clean(f.Protocol), clean(f.Action))
		if f.AnnouncedBy != "" {
			fmt.Fprintf(b, "    announced by node %s\n", clean(f.AnnouncedBy))
		}
	}
	for _, p := range s.Ports {
		fmt.Fprintf(b, "\n  Endpoints of port %s:\n", clean(strings.TrimSpace(fmt.Sprintf("%d/%s %s", p.Port,
			p.Protocol, p.Name))))
		if p.Topology != "" {
			fmt.Fprintf(b, "    restricted by the hints %s\n", clean(p.Topology))
		}
		if len(p.Endpoints) == 0 {
			b.WriteString("    none\n")
		}
		for _, e := range p.Endpoints {
			state := "used"
			if !e.Used {
				state = "not used: " + e.Reason
			}
			where := spaced(e.Pod, e.Node)
			if where != "" {
				where = " (" + where + ")"
			}
			fmt.Fprintf(b, "    %s%s: %s\n", clean(e.Address), clean(where), clean(state))
		}
	}
}

// whyServiceText says where connections to a Service go, and why nothing answers.
func whyServiceText(s nodeapi.Service) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s\n", clean(s.Summary))
	if len(s.Problems) > 0 {
		b.WriteString("\nProblems:\n")
	}
	for _, text := range s.Problems {
		fmt.Fprintf(&b, "  %s\n", clean(text))
	}
	if len(s.Frontends) > 0 {
		b.WriteString("\nAddresses:\n")
	}
	writeServiceDetails(&b, s)
	for _, p := range s.Ports {
		for _, e := range p.Endpoints {
			if !e.Used && e.Pod != "" {
				fmt.Fprintf(&b, "\nDetails of a pod, on its node: berth why %s/%s\n", clean(s.Namespace), clean(e.Pod))
				return b.String()
			}
		}
	}
	return b.String()
}

// whyService returns the response about a Service.
func whyService(ctx context.Context, client *nodeapi.Client, t target) (objectView, error) {
	list, err := client.Services(ctx, t.namespace, t.name)
	if err != nil {
		return objectView{}, err
	}
	if len(list.Services) != 1 { // an empty namespace
		return objectView{}, fmt.Errorf("%d Services have the name %q", len(list.Services), t.name)
	}
	return objectView{list.Services[0], func() (string, error) { return whyServiceText(list.Services[0]), nil }}, nil
}

func (c *factory) dns() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "dns",
		Short: "Query the DNS server of this node",
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(c.dnsQuery())
	return cmd
}

func (c *factory) dnsQuery() *cobra.Command {
	var q nodeapi.DNSQuery
	var format string
	cmd := &cobra.Command{
		Use:   "query NAME",
		Short: "Show what the DNS server of this node answers, and why",
		Long: `Resolve a name as a pod with dnsPolicy ClusterFirst does, with the search path of its namespace, and show
where the answer comes from: a Service with its endpoints, an upstream server, or the cache.`,
		Example: `  berth dns query web
  berth dns query web.shop.svc.cluster.local --type SRV
  berth dns query 10.43.0.1`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := checkFormat(format, "json", "yaml"); err != nil {
				return err
			}
			q.Name = args[0]
			client, err := c.dial()
			if err != nil {
				return err
			}
			defer client.Close()
			answer, err := client.DNS(cmd.Context(), q)
			switch {
			case err != nil:
				return err
			case format != "":
				return encode(cmd.OutOrStdout(), format, answer)
			}
			return writeDNSAnswer(cmd.OutOrStdout(), answer)
		},
	}
	cmd.Flags().StringVarP(&q.Namespace, "namespace", "n", "default", "namespace of the querying pod")
	cmd.Flags().StringVar(&q.Type, "type", "A", "record type, for example A, AAAA or SRV; PTR for an address")
	cmd.Flags().StringVarP(&format, "output", "o", "", "output format: json or yaml")
	fixed(cmd, "output", "json", "yaml")
	return cmd
}

func writeDNSAnswer(w io.Writer, a nodeapi.DNSAnswer) error {
	var b strings.Builder
	from := a.Source
	if a.Upstream != "" {
		from += " (" + a.Upstream + ")"
	}
	if a.Stale {
		from += ", expired, because upstream servers fail"
	}
	fmt.Fprintf(&b, "%s %s: %s, from %s, in %.1f ms\n", clean(a.Name), clean(a.Type), clean(a.Rcode), clean(from),
		1000*a.Seconds)
	for _, r := range a.Answers {
		fmt.Fprintf(&b, "  %s\n", clean(r))
	}
	if a.Reason != "" {
		fmt.Fprintf(&b, "  no records: %s\n", clean(a.Reason))
	}
	if len(a.Searched) > 0 {
		fmt.Fprintf(&b, "Searched without result: %s\n", clean(strings.Join(a.Searched, ", ")))
	}
	for i, e := range a.Endpoints {
		if i == 0 {
			b.WriteString("Endpoints of the Service:\n")
		}
		state := "ready"
		if !e.Ready {
			state = "not ready, without records"
		}
		fmt.Fprintf(&b, "  %s %s: %s\n", clean(e.Service), clean(spaced(e.Address, e.Pod)), state)
	}
	_, err := io.WriteString(w, b.String())
	return err
}
