package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"k8s.io/client-go/tools/clientcmd"

	"berth/control"
	"berth/test/hosts"
	"berth/test/mutations"
	"berth/test/upstream"
)

// compareMutations compares how kube-apiserver and berth-control, both without controllers, judge mutations. It returns
// an error if they differ.
func compareMutations(ctx context.Context, o options, logs string) (err error) {
	logStep("building (kube-apiserver takes some minutes the first time)")
	components, err := upstream.Build(ctx, "etcd", "kube-apiserver")
	if err != nil {
		return err
	}
	program, err := hosts.BuildControl(ctx, hosts.BuildOptions{})
	if err != nil {
		return err
	}
	kubectl, err := hosts.Kubectl()
	if err != nil {
		return err
	}
	p := &programs{control: program, kubectl: kubectl, upstream: components}
	logStep("starting kube-apiserver and berth-control")
	dirs := map[string]string{}
	for _, name := range []string{"kube-apiserver", "berth-control"} {
		dirs[name] = filepath.Join(logs, name)
		if err := os.MkdirAll(dirs[name], 0o755); err != nil {
			return err
		}
	}
	a, _, err := startAPIServer(ctx, p, dirs["kube-apiserver"])
	defer func() { err = errors.Join(err, a.stop()) }()
	if err != nil {
		return err
	}
	b, err := startBerthControl(ctx, p, loopback, dirs["berth-control"], "--controllers",
		control.SystemNamespaces)
	defer func() { err = errors.Join(err, b.stop()) }()
	if err != nil {
		return err
	}
	oracle, err := clientcmd.BuildConfigFromFlags("", a.kubeconfig)
	if err != nil {
		return err
	}
	tested, err := clientcmd.BuildConfigFromFlags("", b.kubeconfig)
	if err != nil {
		return err
	}
	logStep(fmt.Sprintf("sending %d mutations", o.mutations))
	s, err := mutations.Run(ctx, oracle, tested, mutations.Options{Seed: o.seed, Count: o.mutations, Kind: o.kind,
		Examples: o.examples, Record: o.record, Report: os.Stdout})
	if err != nil {
		return err
	}
	fmt.Printf("%d of %d mutations with the same answer (%d accepted); %d of %d written objects are the same; "+
		"%d groups of differences; logs: %s\n",
		s.Sent-s.Different, s.Sent, s.Accepted, s.Written-s.DifferentWritten, s.Written, s.Groups, logs)
	if s.Groups > 0 {
		return errors.New("the servers differ")
	}
	return nil
}
