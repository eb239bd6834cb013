// Command conformance implements make conformance. It runs the Kubernetes conformance tests of a node and of
// workloads ([sig-node], [sig-storage] and [sig-apps]) against berth, once with berth-control and once with the
// control plane components of Kubernetes. It runs those of the network ([sig-network]) with berth-control. It also
// implements make differential, make differential-dns, make placements and make mutations.
//
// The tests and those components are built from Kubernetes' Go module, which takes a quarter of an hour the
// first time. It pulls from no external registry: a registry on loopback serves replacements of the tests'
// images that are built from local files.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"

	"berth/test/images"
)

func main() {
	runtime.LockOSThread() // Pdeathsig kills child processes when the thread that started them exits
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	server := flag.String("server", "both",
		"control `plane`: control (berth-control), stock (components of Kubernetes), both, or "+
			"mixed (berth-control with the scheduler and controllers of Kubernetes)")
	sigs := flag.String("sig", "node,storage,apps", "run the tests of these special interest `groups`")
	focus := flag.String("focus", "", "run only the tests whose names match this regular expression, of any group")
	labels := flag.String("labels", "Conformance", "with -focus, run only the tests that match this label `filter` of "+
		"Ginkgo; empty: all")
	lan := flag.Bool("lan", false, "put two nodes into a network, each in a network namespace of its own, as -sig "+
		"network does; pods get their network, Services and DNS from the agents")
	logs := flag.String("logs", "", "`directory` for reports and logs; empty: a new one")
	scripts := flag.Uint64("scripts", 0, "instead, compare the workload controllers of berth-control and Kubernetes "+
		"over this `number` of seeded scripts")
	clusters := flag.Uint64("placements", 0, "instead, compare the decisions of the schedulers of berth-control and "+
		"Kubernetes in this `number` of seeded clusters")
	seed := flag.Uint64("seed", 1, "first seed of the scripts or clusters, or seed of the Services")
	dns := flag.Int("dns", 0, "instead, compare the DNS answers of the agent and CoreDNS about this `number` of "+
		"seeded Services")
	mutated := flag.Int("mutations", 0, "instead, compare how kube-apiserver and berth-control judge this `number` of "+
		"seeded mutations of objects")
	kind := flag.String("kind", "", "with -mutations, only mutate objects of this `kind`, as Deployment")
	examples := flag.Bool("examples", false, "with -mutations, print an example of each difference")
	record := flag.String("record", "", "`file` for the answers of CoreDNS or kube-apiserver")
	flag.Parse()
	tests := selection{strings.Split(*sigs, ","), *focus, *labels, *lan}
	o := options{server: *server, tests: tests, logs: *logs, seed: *seed,
		scripts: *scripts, clusters: *clusters, dns: *dns, mutations: *mutated, kind: *kind, examples: *examples,
		record: *record}
	if err := run(ctx, o); err != nil {
		fmt.Fprintln(os.Stderr, "conformance:", err)
		os.Exit(1)
	}
}

// planes maps the values of -server to control planes.
var planes = map[string]func(ctx context.Context, p *programs, net network, dir string) (*controlPlane, error){
	"control": func(ctx context.Context, p *programs, net network, dir string) (*controlPlane, error) {
		return startBerthControl(ctx, p, net.address, dir, net.flags()...)
	},
	"mixed": startMixed,
	"stock": startStock,
}

// options are the values of the flags.
type options struct {
	server                  string
	tests                   selection
	logs                    string
	seed, scripts, clusters uint64
	dns, mutations          int
	kind, record            string
	examples                bool
}

func run(ctx context.Context, o options) (err error) {
	if os.Geteuid() != 0 {
		return errors.New("run as root: pods need mounts, cgroups and network namespaces")
	}
	if len(o.tests.groups()) == 0 {
		return fmt.Errorf("-sig %q: known groups are node, storage, apps and network", strings.Join(o.tests.sigs, ","))
	}
	names := []string{"control", "stock"}
	if o.server != "both" {
		if planes[o.server] == nil {
			return fmt.Errorf("-server %q: it must be control, stock, both or mixed", o.server)
		}
		names = []string{o.server}
	}
	if o.tests.onLAN() && slices.Contains(names, "stock") {
		return fmt.Errorf("-server %s: the group network and -lan need -server control or mixed", o.server)
	}
	logs := o.logs
	if logs == "" {
		if logs, err = os.MkdirTemp("", "berth-conformance-"); err != nil {
			return err
		}
	}
	if logs, err = filepath.Abs(logs); err != nil {
		return err
	}
	if err := os.MkdirAll(logs, 0o755); err != nil {
		return err
	}
	if o.scripts > 0 {
		return compareControllers(ctx, o.seed, o.scripts, logs)
	}
	if o.dns > 0 {
		return compareDNS(ctx, o.seed, o.dns, o.record, logs)
	}
	if o.mutations > 0 {
		return compareMutations(ctx, o, logs)
	}
	if o.clusters > 0 {
		return comparePlacements(ctx, o.seed, o.clusters, logs)
	}
	return runTests(ctx, names, o.tests, logs)
}

// runTests runs the selected tests with each of the named control planes.
func runTests(ctx context.Context, names []string, tests selection, logs string) (err error) {
	logStep("building (the components of Kubernetes take a quarter of an hour the first time)")
	p, err := build(ctx)
	if err != nil {
		return err
	}
	net, err := newNetwork(tests.onLAN())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, net.close()) }()
	logStep("building replacements of the tests' images")
	registry, err := standIns(ctx, p, net, logs)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, registry.Close()) }()
	var failed []string
	for _, name := range names {
		all, err := runAgainst(ctx, name, p, net, registry, tests, filepath.Join(logs, name))
		if err != nil {
			return fmt.Errorf("%s (see %s): %w", name, logs, err)
		}
		all.print(os.Stdout, name)
		if !all.passed() {
			failed = append(failed, name)
		}
	}
	fmt.Println("reports and logs:", logs)
	if len(failed) > 0 {
		return fmt.Errorf("not all tests passed with %s", strings.Join(failed, " and "))
	}
	return nil
}

// runAgainst runs the tests against one control plane with joined nodes.
func runAgainst(ctx context.Context, name string, p *programs, net network, registry *images.Registry,
	tests selection, dir string) (all results, err error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	logStep("starting the control plane: " + name)
	pl, err := planes[name](ctx, p, net, dir)
	if err != nil {
		return nil, errors.Join(err, pl.stop())
	}
	defer func() { err = errors.Join(err, pl.stop()) }()
	names, apps := []string{nodeName}, slices.Contains(tests.sigs, "apps")
	if apps || net.lan != nil {
		names = append(names, secondNodeName)
	}
	for _, name := range names {
		logStep("joining node " + name)
		n, err := join(ctx, p, pl, net, registry, name, dir)
		if err != nil {
			return nil, err
		}
		defer func() { err = errors.Join(err, n.stop()) }()
	}
	logStep("running the tests")
	if all, err = test(ctx, p, pl, tests, dir); err == nil && apps {
		logStep("installing a chart with Helm")
		all = append(all, installChart(ctx, p, pl, filepath.Join(dir, "helm")))
	}
	return all, err
}

func logStep(text string) { fmt.Fprintln(os.Stderr, "==>", text) }
