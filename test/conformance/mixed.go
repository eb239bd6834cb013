package main

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"

	"berth/control/controllers"
	"berth/test/hosts"
)

// excludedControllers are the controllers of API kinds that berth-control stores only, and those that berth-control
// keeps.
const excludedControllers = "-certificatesigningrequest-approving-controller," +
	"-certificatesigningrequest-signing-controller," +
	"-podcertificaterequest-cleaner-controller,-service-cidr-controller," +
	"-storage-version-migrator-controller,-kube-apiserver-serving-clustertrustbundle-publisher-controller"

// startMixed starts berth-control with the scheduler and controller manager of Kubernetes instead of its own.
// berth-control keeps the CSR approving and signing controllers: those of Kubernetes do not approve serving
// certificates of nodes, and only berth-control has the signing key.
func startMixed(ctx context.Context, p *programs, net network, dir string) (*controlPlane, error) {
	var list strings.Builder
	list.WriteString("*,-scheduler,-clusterrole-aggregation-controller")
	for _, name := range controllers.Names() {
		if name != controllers.CSRApproving && name != controllers.CSRSigning {
			list.WriteString(",-" + name)
		}
	}
	pl, err := startBerthControl(ctx, p, net.address, dir, append(net.flags(), "--controllers", list.String())...)
	if err != nil {
		return pl, err
	}
	var ports [2]int // of the controllers and the scheduler
	for i := range ports {
		if ports[i], err = hosts.FreePort(); err != nil {
			return pl, err
		}
	}
	key := func(name string) string { return filepath.Join(dir, "data", "pki", name) }
	if err := pl.start(ctx, "kube-controller-manager", p.of("kube-controller-manager"), "--kubeconfig", pl.kubeconfig,
		"--secure-port", fmt.Sprint(ports[0]),
		"--root-ca-file", key("ca.crt"), "--service-account-private-key-file", key("service-account.key"),
		"--kube-api-qps", "1000", "--kube-api-burst", "2000", // so that the client's limits do not slow it down
		"--allocate-node-cidrs", "--cluster-cidr", net.podCIDRs(), "--leader-elect=false",
		"--flex-volume-plugin-dir", filepath.Join(dir, "flexvolumes"), "--controllers",
		"*,"+excludedControllers); err != nil {
		return pl, err
	}
	return pl, pl.start(ctx, "kube-scheduler", p.of("kube-scheduler"), "--kubeconfig", pl.kubeconfig, "--secure-port",
		fmt.Sprint(ports[1]), "--leader-elect=false")
}
