package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"k8s.io/client-go/tools/clientcmd"

	"berth/control/controllers"
	"berth/test/conformance/placements"
	"berth/test/hosts"
	"berth/test/upstream"
)

// schedulerConfig is the configuration of kube-scheduler. It considers all nodes for each pod. Limits of its client do
// not slow it down.
const schedulerConfig = `apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
leaderElection: {leaderElect: false}
percentageOfNodesToScore: 100
clientConnection: {kubeconfig: %s, qps: 10000, burst: 10000}
`

// comparePlacements compares the decisions of kube-scheduler with those of berth's scheduler in seeded clusters. It
// returns an error if they differ.
func comparePlacements(ctx context.Context, first, count uint64, logs string) (err error) {
	logStep("building")
	components, err := upstream.Build(ctx, "kube-scheduler")
	if err != nil {
		return err
	}
	control, err := hosts.BuildControl(ctx, hosts.BuildOptions{})
	if err != nil {
		return err
	}
	dir := filepath.Join(logs, "placements")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	logStep("starting berth-control and kube-scheduler")
	pl, err := startForPlacements(ctx, components, control, dir)
	defer func() { err = errors.Join(err, pl.stop()) }()
	if err != nil {
		return err
	}
	config, err := clientcmd.BuildConfigFromFlags("", pl.kubeconfig)
	if err != nil {
		return err
	}
	logStep(fmt.Sprintf("playing %d clusters (- kube-scheduler, + berth-control)", count))
	s, err := placements.Run(ctx, config, placements.Options{First: first, Count: count, Report: os.Stdout,
		Log: filepath.Join(dir, "kube-scheduler.log")})
	if err != nil {
		return err
	}
	fmt.Printf("%d of %d clusters without a difference (%d pods bound, %d of them with scores; %d rejected; %d with "+
		"preemption; %d after their gates were removed; %d nominated before); logs: %s\n", count-uint64(s.Different),
		count, s.Bound, s.Scored, s.Rejected, s.Preempting, s.Gated, s.Nominated, logs)
	if s.Different > 0 {
		return errors.New("the schedulers differ")
	}
	return nil
}

// startForPlacements starts berth-control without controllers that change nodes or pods, and kube-scheduler.
func startForPlacements(ctx context.Context, components, control, dir string) (*controlPlane, error) {
	var list strings.Builder
	list.WriteString("*,-scheduler")
	for _, name := range controllers.Names() {
		if name != controllers.ServiceAccounts && name != controllers.Namespaces {
			list.WriteString(",-" + name)
		}
	}
	kubectl, err := hosts.Kubectl()
	if err != nil {
		return nil, err
	}
	pl, err := startBerthControl(ctx, &programs{control: control, kubectl: kubectl}, loopback, dir, "--controllers",
		list.String())
	if err != nil {
		return pl, err
	}
	config := filepath.Join(dir, "kube-scheduler.yaml")
	if err := os.WriteFile(config, fmt.Appendf(nil, schedulerConfig, pl.kubeconfig), 0o600); err != nil {
		return pl, err
	}
	port, err := hosts.FreePort()
	if err != nil {
		return pl, err
	}
	// With opportunistic batching, kube-scheduler would not score the nodes for each pod.
	return pl, pl.start(ctx, "kube-scheduler", filepath.Join(components, "kube-scheduler"), "--config", config, "-v",
		"10", "--bind-address", "127.0.0.1", "--secure-port", fmt.Sprint(port), "--feature-gates",
		"OpportunisticBatching=false")
}
