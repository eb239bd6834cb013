package main

import (
	"context"
	"flag"
	"fmt"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"text/tabwriter"
	"time"

	"berth/test/hosts"
	"berth/test/images"
)

var (
	rounds  = flag.Int("rounds", 5, "interleaved runs of each kind")
	burst   = flag.Int("pods", 50, "pods at once")
	idle    = flag.Duration("idle", 30*time.Second, "how long CPU is measured with idle pods")
	version = flag.String("containerd", "2", "containerd to run on: 2 or 1.6")
	probing = flag.Duration("probing", time.Minute, "how long 500 probes a second are made")
	only    = flag.String("only", "", "figures to take, by a part of their name; empty: all")
)

func main() {
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
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

func run(ctx context.Context) (err error) {
	repo, err := hosts.Repo()
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
	o := hosts.Options{Version: hosts.Version2, Images: paths, CNI: true}
	if *version == "1.6" {
		o.Version = hosts.Version16
	}
	host, err := hosts.Start(ctx, o)
	if err != nil {
		return err
	}
	defer func() {
		if left := host.Stop(); left != nil && err == nil {
			err = left
		}
	}()
	bin, err := hosts.BuildBerth(ctx, hosts.BuildOptions{})
	if err != nil {
		return err
	}
	health, err := freePort(ctx)
	if err != nil {
		return err
	}
	agent, err := hosts.StartAgent(ctx, hosts.AgentOptions{Binary: bin, Host: host, Config: map[string]any{"healthzPort": health.Port, "maxPods": 200}})
	if err != nil {
		return err
	}
	if err := agent.WaitReady(ctx); err != nil {
		return fmt.Errorf("%w\n%s", err, agent.Log())
	}
	b := &bench{host: host, agent: agent, health: health.String()}
	for _, f := range []struct {
		name string
		take func(context.Context) error
	}{
		{"binary", b.binary}, {"memory-idle", b.memoryIdle}, {"warm", b.warm}, {"burst", b.burst},
		{"exit", b.exits}, {"configmap", b.configMap},
		{"probes-speed", b.probesSpeed}, {"probes-http", b.probesHTTP}, {"probes-exec", b.probesExec},
	} {
		if !strings.Contains(f.name, *only) {
			continue
		}
		if err := f.take(ctx); err != nil {
			return fmt.Errorf("%s: %w\n%s", f.name, err, agent.Log())
		}
	}
	b.print()
	return nil
}

// freePort is a port of loopback that nobody has now.
func freePort(ctx context.Context) (*net.TCPAddr, error) {
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	at, ok := l.Addr().(*net.TCPAddr)
	if !ok {
		return nil, fmt.Errorf("no TCP address: %s", l.Addr())
	}
	return at, l.Close()
}

func (b *bench) print() {
	fmt.Printf("\nberth bench, %s, %d CPUs, %s, containerd %s\n\n", time.Now().UTC().Format("2006-01-02"), runtime.NumCPU(), runtime.GOARCH, b.host.Version)
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "FIGURE\tBERTH\tBARE CRI\tRATIO\tGOAL")
	for _, r := range b.rows {
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\n", r.what, r.got, r.limit, r.ratio, r.goal)
	}
	_ = w.Flush()
}
