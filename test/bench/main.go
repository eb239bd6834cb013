package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	"berth/test/hosts"
	"berth/test/images"
)

var (
	rounds  = flag.Int("rounds", 5, "interleaved runs of each kind")
	burst   = flag.Int("pods", 50, "pods at once")
	idle    = flag.Duration("idle", 30*time.Second, "how long to measure CPU with idle pods")
	version = flag.String("containerd", "2", "containerd `version`: 2 or 1.6; with 2, polling is still measured on 1.6")
	probing = flag.Duration("probing", time.Minute, "how long to run 500 probes per second")
	peers   = flag.Bool("peers", false, "measure components of Kubernetes and CoreDNS beside berth in the same run; "+
		"they are built first, which takes minutes")
	only = flag.String("only", "", "measure only figures whose names contain this `text`; empty: all")
)

func main() {
	if api, is := os.LookupEnv(proxyEnv); is {
		if err := runProxy(api); err != nil {
			fmt.Fprintln(os.Stderr, "bench:", err)
			os.Exit(1)
		}
		return
	}
	if kubeconfig, is := os.LookupEnv(dnsEnv); is {
		if err := serveDNS(kubeconfig, os.Args[1:]); err != nil {
			fmt.Fprintln(os.Stderr, "bench:", err)
			os.Exit(1)
		}
		return
	}
	flag.Parse()
	if versions[*version] == "" {
		fmt.Fprintf(os.Stderr, "bench: -containerd is %q, want 2 or 1.6\n", *version)
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// bench is one run on one host.
type bench struct {
	host   *hosts.Host
	agent  *hosts.Agent
	health string // host:port of the agent's metrics
	rows   []row
}

// row is one figure.
type row struct{ what, got, limit, ratio, goal string }

func (b *bench) add(what, got, limit, ratio, goal string) {
	b.rows = append(b.rows, row{what, got, limit, ratio, goal})
	fmt.Fprintf(os.Stderr, "%s: %s %s %s\n", what, got, limit, ratio)
}

// figure is a measurement with its name for -only.
type figure struct {
	name string
	take func(context.Context) error
}

func run(ctx context.Context) (err error) {
	b := &bench{}
	control := []figure{
		{"control-ready", b.controlReady}, {"control-memory", b.controlMemory},
		{"control-creates", b.controlCreates}, {"control-watch", b.controlWatch},
		{"dns", b.dns},
		{"services", b.services},
	}
	if err := b.onHost(ctx, versions[*version], []figure{
		{"binary", b.binary}, {"memory-idle", b.memoryIdle}, {"warm", b.warm}, {"storm", b.storm}, {"burst", b.burst},
		{"exit", b.exits}, {"configmap", b.configMap},
		{"pair-warm", b.withPair(b.pairWarm)}, {"pair-burst", b.withPair(b.pairBurst)},
		{"pair-configmap", b.withPair(b.pairConfigMap)}, {"pair-memory", b.withPair(b.pairMemory)},
		{"probes-speed", b.probesSpeed}, {"probes-http", b.probesHTTP}, {"probes-exec", b.probesExec},
		{"eviction", b.eviction},
	}); err != nil {
		return err
	}
	if versions[*version] != hosts.Version16 { // otherwise burst has measured it
		if err := b.onHost(ctx, hosts.Version16, []figure{{"polled", b.polled}}); err != nil {
			return err
		}
	}
	if *peers {
		control = append(control, figure{"control-idle", b.controlIdle}, figure{"control-rollout", b.controlRollout},
			figure{"control-scheduling", b.controlScheduling})
	}
	if err := take(ctx, append(control, figure{"decide", b.decide},
		figure{"eviction-decide", b.evictionDecide})); err != nil {
		return err
	}
	return b.print()
}

// defaultSettings restores defaults that test/hosts changes for tests on busy machines.
var defaultSettings = map[string]any{"startPressurePercent": 90}

// versions maps the values of -containerd.
var versions = map[string]hosts.Version{"2": hosts.Version2, "1.6": hosts.Version16}

func (f figure) selected() bool { return strings.Contains(f.name, *only) }

func take(ctx context.Context, figures []figure) error {
	for _, f := range figures {
		if !f.selected() {
			continue
		}
		if err := f.take(ctx); err != nil {
			return fmt.Errorf("%s: %w", f.name, err)
		}
	}
	return nil
}

// onHost runs the selected measurements of the agent on a new host.
func (b *bench) onHost(ctx context.Context, v hosts.Version, figures []figure) (err error) {
	if !slices.ContainsFunc(figures, figure.selected) {
		return nil
	}
	repo, err := hosts.RepoRoot()
	if err != nil {
		return err
	}
	archives, err := images.All(ctx, filepath.Join(repo, ".cache", "images"))
	if err != nil {
		return err
	}
	var paths []string
	for _, a := range archives {
		paths = append(paths, a.Path)
	}
	host, err := hosts.Start(ctx, hosts.Options{Version: v, Images: paths, CNI: true})
	if err != nil {
		return err
	}
	defer func() {
		if errStop := host.Stop(); errStop != nil && err == nil {
			err = errStop
		}
	}()
	bin, err := hosts.BuildBerth(ctx, hosts.BuildOptions{})
	if err != nil {
		return err
	}
	health, err := hosts.FreePort()
	if err != nil {
		return err
	}
	agent, err := hosts.StartAgent(ctx, hosts.AgentOptions{Binary: bin, Host: host, Config: map[string]any{
		"healthzPort": health, "maxPods": 200, "crashLoopBackOff": map[string]any{"maxContainerRestartPeriod": "1s"},
	}, BerthConfig: defaultSettings})
	if err != nil {
		return err
	}
	if err := agent.WaitReady(ctx); err != nil {
		return fmt.Errorf("%w\n%s", err, agent.Log())
	}
	b.host, b.agent, b.health = host, agent, fmt.Sprintf("127.0.0.1:%d", health)
	if err := take(ctx, figures); err != nil {
		return fmt.Errorf("%w\n%s", err, agent.Log())
	}
	return nil
}

// print prints the table and the missed goals.
func (b *bench) print() error {
	summary, failed := markMissed(b.rows)
	fmt.Printf("\nberth bench, %s, %d CPUs, %s, containerd %s\n\n", time.Now().UTC().Format("2006-01-02"),
		runtime.NumCPU(), runtime.GOARCH, *version)
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "FIGURE\tBERTH\tBASELINE\tRATIO\tGOAL")
	for _, r := range b.rows {
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\n", r.what, r.got, r.limit, r.ratio, r.goal)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	fmt.Printf("\n%s\n", summary)
	return failed
}
