package main

import (
	"context"
	"errors"
	"fmt"
	"os"

	"k8s.io/client-go/tools/clientcmd"

	"berth/services/dns/dnstest"
	"berth/test/conformance/dnsdifferential"
	"berth/test/hosts"
)

// compareDNS compares the answers of the agent's DNS server with those of CoreDNS, over a number of seeded
// Services. It returns an error if answers differ that should not.
func compareDNS(ctx context.Context, seed uint64, count int, record, logs string) (err error) {
	logStep("building berth-control and CoreDNS")
	control, err := hosts.BuildControl(ctx, hosts.BuildOptions{})
	if err != nil {
		return err
	}
	kubectl, err := hosts.Kubectl()
	if err != nil {
		return err
	}
	coredns, err := dnsdifferential.BuildCoreDNS(ctx)
	if err != nil {
		return err
	}
	upstream, stop, err := dnstest.StartUpstream()
	if err != nil {
		return err
	}
	defer stop()
	logStep("starting the control plane")
	pl, err := startBerthControl(ctx, &programs{control: control, kubectl: kubectl}, loopback, logs,
		"--service-cluster-ip-range", dnstest.ServiceCIDRs)
	defer func() { err = errors.Join(err, pl.stop()) }()
	if err != nil {
		return err
	}
	config, err := clientcmd.BuildConfigFromFlags("", pl.kubeconfig)
	if err != nil {
		return err
	}
	port, err := hosts.FreePort()
	if err != nil {
		return err
	}
	corefile, err := dnsdifferential.WriteCorefile(logs, port, pl.kubeconfig, upstream)
	if err != nil {
		return err
	}
	if err := pl.start(ctx, "coredns", coredns, "-conf", corefile); err != nil {
		return err
	}
	logStep(fmt.Sprintf("comparing answers about %d Services (- CoreDNS, + berth)", count))
	s, err := dnsdifferential.Run(ctx, config, dnsdifferential.Options{CoreDNS: fmt.Sprintf("127.0.0.1:%d", port),
		Upstream: upstream, Seed: seed, Count: count, Record: record, Dir: logs, Report: os.Stdout})
	if err != nil {
		return err
	}
	fmt.Printf("%d of %d answers about %d Services are equal, %d differ on purpose; logs: %s\n",
		s.Questions-s.Intended-s.Different, s.Questions, s.Services, s.Intended, logs)
	if s.Different > 0 {
		return fmt.Errorf("%d answers differ", s.Different)
	}
	return nil
}
