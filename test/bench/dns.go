package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime/debug"
	"strconv"
	"syscall"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"berth/services"
	"berth/services/dns/dnstest"
	"berth/test/conformance/dnsdifferential"
	"berth/test/hosts"
)

const (
	// dnsEnv makes this program the DNS server of the agent, for a process of its own. Its value is the
	// kubeconfig of the API server with the Services.
	dnsEnv = "BERTH_BENCH_DNS"
	// dnsServices is the number of Services.
	dnsServices = 1000
	// dnsRate is the number of queries per second, dnsTime how long a run takes.
	dnsRate = 5000
	dnsTime = 10 * time.Second
)

// dnsServer is a DNS server in a process of its own.
type dnsServer struct {
	cmd     *exec.Cmd
	address string
}

func (s *dnsServer) stop() {
	if s != nil {
		_ = s.cmd.Process.Signal(syscall.SIGTERM)
		_ = s.cmd.Wait() // CoreDNS exits with an error
	}
}

// dns measures the latency of answers about the cluster at a rate that a busy node may have, and the memory
// that Services take.
func (b *bench) dns(ctx context.Context) (err error) {
	dir, err := os.MkdirTemp("", "berth-bench-dns-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	control, err := startControl(ctx, "--service-cluster-ip-range", dnstest.ServiceCIDRs)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, control.stop()) }()
	upstream, stopUpstream, err := dnstest.StartUpstream()
	if err != nil {
		return err
	}
	defer stopUpstream()
	kubeconfig := filepath.Join(control.dir, "admin.kubeconfig")
	starts := map[string]func() (*dnsServer, error){"berth": func() (*dnsServer, error) {
		return startDNS(ctx, dir, kubeconfig, upstream)
	}}
	if *peers {
		program, err := dnsdifferential.BuildCoreDNS(ctx)
		if err != nil {
			return err
		}
		starts["coredns"] = func() (*dnsServer, error) { return startCoreDNS(dir, program, kubeconfig, upstream) }
	}
	idle, loaded, latency := map[string]int64{}, map[string]int64{}, map[string][]time.Duration{}
	for name, start := range starts {
		if idle[name], err = dnsMemory(ctx, start); err != nil {
			return err
		}
	}
	objects := dnstest.Generate(1, dnsServices)
	if err := dnsdifferential.Write(ctx, control.client, objects); err != nil {
		return err
	}
	running := map[string]*dnsServer{}
	for name, start := range starts {
		if loaded[name], err = dnsMemory(ctx, start); err != nil {
			return err
		}
		s, err := start()
		defer s.stop()
		if err != nil {
			return err
		}
		if err := dnsdifferential.AwaitServices(ctx, s.address, objects); err != nil {
			return err
		}
		running[name] = s
	}
	queries, cpu := dnsQueries(objects), map[string]time.Duration{}
	for range *rounds {
		for name, s := range running {
			took, used, err := s.measure(ctx, queries)
			if err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
			latency[name], cpu[name] = append(latency[name], took...), cpu[name]+used
		}
	}
	b.addDNS(idle, loaded, latency, cpu)
	return nil
}

// measure sends queries to the server and returns how long the answers took, and the CPU time of the server.
func (s *dnsServer) measure(ctx context.Context, queries [][]byte) (took []time.Duration, cpu time.Duration,
	err error) {
	before, err := cpuOf(s.cmd.Process.Pid)
	if err != nil {
		return nil, 0, err
	}
	if took, err = dnsLoad(ctx, s.address, queries); err != nil {
		return nil, 0, err
	}
	after, err := cpuOf(s.cmd.Process.Pid)
	return took, after - before, err
}

// addDNS adds the figures. The second column is that of CoreDNS.
func (b *bench) addDNS(idle, loaded map[string]int64, latency map[string][]time.Duration,
	cpu map[string]time.Duration) {
	const server, peer = "berth", "coredns"
	for _, q := range []struct {
		name, goal string
		at         float64
	}{{"p50", "", 0.5}, {"p99", "<= 1 ms", 0.99}} {
		got, other, over := quantile(latency[server], q.at), "-", ""
		if *peers {
			theirs := quantile(latency[peer], q.at)
			other, over = fineMS(theirs)+" (CoreDNS)", ratio(got, theirs)
		}
		what := fmt.Sprintf("DNS: answer about the cluster at %d/s, %s", dnsRate, q.name)
		b.add(what, fineMS(got), other, over, q.goal)
	}
	each := func(name string) time.Duration { return cpu[name] / time.Duration(max(1, len(latency[name]))) }
	other, over := "-", ""
	if *peers {
		other, over = fmt.Sprintf("%d us (CoreDNS)", each(peer).Microseconds()), ratio(each(server), each(peer))
	}
	b.add("DNS: CPU time of an answer", fmt.Sprintf("%d us", each(server).Microseconds()), other, over, "")
	if other = "-"; *peers {
		other = mib(loaded[peer]-idle[peer]) + " (CoreDNS)"
	}
	b.add(fmt.Sprintf("DNS: memory for %d Services", dnsServices), mib(loaded[server]-idle[server]), other, "", "")
}

func fineMS(d time.Duration) string { return fmt.Sprintf("%.2f ms", float64(d)/1e6) }

// dnsMemory starts a server and returns its resident memory when it has come to rest.
func dnsMemory(ctx context.Context, start func() (*dnsServer, error)) (rss int64, err error) {
	s, err := start()
	if err != nil {
		return 0, err
	}
	defer s.stop()
	if err := pause(ctx, 5*time.Second); err != nil {
		return 0, err
	}
	return rssOf(s.cmd.Process.Pid)
}

// startDNS starts the DNS server of the agent.
func startDNS(ctx context.Context, dir, kubeconfig string, upstream uint16) (*dnsServer, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	out, in, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer out.Close()
	cmd := exec.Command(self, dir, strconv.Itoa(int(upstream)))
	cmd.Env = append(os.Environ(), dnsEnv+"="+kubeconfig)
	cmd.Stdout, cmd.Stderr = in, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	err = cmd.Start()
	_ = in.Close()
	if err != nil {
		return nil, err
	}
	s := &dnsServer{cmd: cmd}
	if _, err := fmt.Fscan(out, &s.address); err != nil {
		s.stop()
		return nil, errors.Join(fmt.Errorf("DNS server: %w", err), ctx.Err())
	}
	return s, nil
}

// startCoreDNS starts CoreDNS.
func startCoreDNS(dir, program, kubeconfig string, upstream uint16) (*dnsServer, error) {
	port, err := hosts.FreePort()
	if err != nil {
		return nil, err
	}
	corefile, err := dnsdifferential.WriteCorefile(dir, port, kubeconfig, upstream)
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(program, "-conf", corefile)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return &dnsServer{cmd, fmt.Sprintf("127.0.0.1:%d", port)}, cmd.Start()
}

// serveDNS is the process of startDNS. It prints the address of the server.
func serveDNS(kubeconfig string, args []string) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	store := services.NewStore()
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return err
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	objects, err := dnsdifferential.Read(ctx, client)
	if err != nil {
		return err
	}
	objects.Fill(store)
	upstream, err := strconv.ParseUint(args[1], 10, 16)
	if err != nil {
		return err
	}
	address, end, err := dnstest.Serve(store, uint16(upstream), args[0], slog.New(slog.DiscardHandler))
	if err != nil {
		return err
	}
	debug.FreeOSMemory() // of the list, as the agent does some time after a list
	fmt.Println(address)
	<-ctx.Done()
	return end()
}
