package main

import (
	"fmt"
	"path/filepath"

	corev1 "k8s.io/api/core/v1"

	"berth/cni"
	"berth/cni/gateway"
	"berth/cni/routes"
	"berth/node/registration"
)

func (b *berth) routesFile() string { return filepath.Join(b.config.StateDir, gateway.FileName) }

// removeRoutes removes routes and rules that an earlier configuration has created.
func (b *berth) removeRoutes() {
	if b.config.Network.HostGateway {
		return
	}
	if err := gateway.Remove(b.routesFile(), b.log); err != nil {
		b.log.Error("routes and rules of an earlier configuration could not be removed", "err", err)
	}
}

// makeGateway creates the routes to pods of other nodes, and restores the persisted routes, because
// pods can start before the API server is available.
func (j *cluster) makeGateway() (err error) {
	c := j.b.config.Network
	if !c.HostGateway {
		return nil
	}
	j.gateway, err = gateway.New(gateway.Options{
		File: j.b.routesFile(), Log: j.b.log,
		Enabled: func() bool { return !cni.IsForeign(c.CNIConfDir) },
		OnProblem: func(p routes.Problem) {
			message := fmt.Sprintf("Pods of node %s are unreachable: %s", p.Node, p.Message)
			j.events.RecordNodeEvent(corev1.EventTypeWarning, "FailedToCreateRoute", message)
		},
		OnChange: func(gateway.Status) { j.registration.Trigger() },
	})
	if err != nil {
		return fmt.Errorf("routes to pods of other nodes: %w", err)
	}
	_ = j.gateway.Sync() // logs errors itself and is retried
	return nil
}

// networkCondition returns the condition NetworkUnavailable, or nil if another component manages it. A
// condition that berth has set is cleared by berth.
func (j *cluster) networkCondition() *registration.NetworkCondition {
	if j.gateway == nil && !j.networkUnavailable {
		return nil
	}
	c := gateway.NoLongerManaged()
	if j.gateway != nil {
		c = j.gateway.Condition(j.b.config.Network.CNIConfDir, !j.b.host.hasPodCIDRs.Load())
	}
	return (*registration.NetworkCondition)(&c)
}
