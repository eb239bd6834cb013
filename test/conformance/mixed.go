package main

import (
	"context"
	"fmt"
	"path/filepath"

	"berth/control/controllers"
	"berth/test/hosts"
)

// excludedControllers are the controllers of kinds that berth-control does not have, and those that stay its own.
const excludedControllers = "-certificatesigningrequest-approving-controller,-certificatesigningrequest-signing-controller," +
	"-horizontal-pod-autoscaler-controller,-podcertificaterequest-cleaner-controller,-service-cidr-controller," +
	"-storage-version-migrator-controller,-validatingadmissionpolicy-status-controller"

// mixed is berth-control with Kubernetes' own scheduler and controller manager in
// place of its parts of the same names, but for those that approve and sign: Kubernetes'
// own do not approve what nodes show, and that is signed by a key that only berth-control has.
func mixed(ctx context.Context, p *programs, dir string) (*controlPlane, error) {
	list := "*,-scheduler,-clusterrole-aggregation-controller"
	for _, name := range controllers.Names() {
		if name != controllers.CSRApproving && name != controllers.CSRSigning {
			list += ",-" + name
		}
	}
	pl, err := lightweight(ctx, p, dir, "--controllers", list)
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
	if err := pl.start(ctx, "kube-controller-manager", p.of("kube-controller-manager"), "--kubeconfig", pl.kubeconfig, "--secure-port", fmt.Sprint(ports[0]),
		"--root-ca-file", key("ca.crt"), "--service-account-private-key-file", key("service-account.key"), "--allocate-node-cidrs", "--cluster-cidr", "10.42.0.0/16", "--leader-elect=false",
		"--flex-volume-plugin-dir", filepath.Join(dir, "flexvolumes"), "--controllers", "*,"+excludedControllers); err != nil {
		return pl, err
	}
	return pl, pl.start(ctx, "kube-scheduler", p.of("kube-scheduler"), "--kubeconfig", pl.kubeconfig, "--secure-port", fmt.Sprint(ports[1]), "--leader-elect=false")
}
