package registration

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	coordv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"berth/internal/apiclient"
)

const (
	leaseParts = 4                     // how often a lease is renewed while it holds
	dropAfter  = 2                     // after how many failures in a row another connection is made
	leaseSoon  = 50 * time.Millisecond // after which a lease is tried again that waits for its Node
)

// errNoNode says that there is no lease to renew, and no Node yet that one could
// go with.
var errNoNode = errors.New("the node is not registered yet")

// renew keeps the node's lease until ctx ends. It reads nothing: whoever has the
// node's identity has the lease.
func (p *Registrar) renew(ctx context.Context) {
	every := p.opt.LeaseDuration / leaseParts
	failed := 0 // times in a row
	for wait := time.Duration(0); ; {
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
		began := p.opt.Now()
		err := p.renewOnce(ctx, min(every, requestBound))
		if ctx.Err() != nil {
			return
		}
		if errors.Is(err, errNoNode) { // in a moment, on most nodes
			wait = min(max(2*wait, leaseSoon), time.Second, every)
			continue
		}
		p.opt.OnLeaseRenewed(p.opt.Now().Sub(began), err)
		wait = min(time.Second, every)
		switch {
		case err == nil:
			wait = every
			if failed > 0 {
				p.opt.Log.Info("the lease is renewed again")
			}
			failed = 0
			continue
		case failed == 0:
			p.opt.Log.Warn("the lease cannot be renewed; it is tried again", "err", err)
		}
		failed++
		p.reconnect(failed, err)
	}
}

// reconnect drops connections on which nobody answers, after so many failures in a
// row: what a broken way has swallowed shows in no other way for most of a minute,
// and by then the lease is over. What the node reads is begun anew but once: more
// would only add to the load of a server that is slow.
func (p *Registrar) reconnect(failed int, err error) {
	var answer apierrors.APIStatus
	if failed%dropAfter != 0 || errors.As(err, &answer) {
		return
	}
	p.opt.HeartbeatClient.Close()
	if failed == dropAfter {
		p.opt.Client.Close()
	}
}

func (p *Registrar) renewOnce(ctx context.Context, bound time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, bound)
	defer cancel()
	now := metav1.NewMicroTime(p.opt.Now())
	seconds := int32(p.opt.LeaseDuration / time.Second)
	spec := coordv1.LeaseSpec{HolderIdentity: &p.opt.Name, LeaseDurationSeconds: &seconds, RenewTime: &now}
	patch, err := json.Marshal(map[string]any{"spec": spec})
	if err != nil {
		return err
	}
	err = p.opt.HeartbeatClient.Patch(ctx, apiclient.Leases, corev1.NamespaceNodeLease, p.opt.Name, types.MergePatchType, patch, nil)
	if !apierrors.IsNotFound(err) {
		return err
	}
	uid := p.UID()
	if uid == "" {
		return errNoNode
	}
	lease := &coordv1.Lease{Spec: spec}
	lease.Name, lease.Namespace = p.opt.Name, corev1.NamespaceNodeLease
	lease.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: p.opt.Name, UID: uid}}
	return p.opt.HeartbeatClient.Create(ctx, apiclient.Leases, corev1.NamespaceNodeLease, lease, nil)
}

// settleName makes sure that no other machine is alive under the node's name. A
// server that cannot be reached does not hold the node up: pods that are here
// have to run.
func (p *Registrar) settleName(ctx context.Context) error {
	n := &corev1.Node{}
	first, err := p.look(ctx, n)
	if err != nil || p.mine(ctx, n) || !first.After(p.opt.Now().Add(-p.opt.LeaseDuration)) {
		return nil //nolint:nilerr // nobody is there, or nobody can tell
	}
	p.opt.Log.Warn("the node's name belongs to another installation that was alive a moment ago: waiting whether it still is",
		"node", p.opt.Name, "renewed", first)
	for waited := time.Duration(0); waited < p.opt.LeaseDuration; waited += p.opt.LeaseDuration / leaseParts {
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(p.opt.LeaseDuration / leaseParts):
		}
		if again, err := p.look(ctx, n); err == nil && again.After(first) {
			return fmt.Errorf("node name %s: another machine has it and is alive (machine ID %s, %s): give this one another name with "+
				"--hostname-override, or, if this one takes its place, stop berth there first", p.opt.Name, n.Status.NodeInfo.MachineID, addressOf(n))
		}
	}
	return nil
}

// mine reports whether a Node was made by this installation, or by a node agent
// on this machine that leaves no mark.
func (p *Registrar) mine(ctx context.Context, n *corev1.Node) bool {
	return made(n, p.opt.Installation, func() string { return p.opt.Facts(ctx).System.MachineID })
}

func made(n *corev1.Node, installation string, machine func() string) bool {
	if by := n.Annotations[InstallationAnnotation]; by != "" {
		return by == installation
	}
	return n.Status.NodeInfo.MachineID == "" || n.Status.NodeInfo.MachineID == machine()
}

// look reads the Node of this name and when its lease was last renewed.
func (p *Registrar) look(ctx context.Context, n *corev1.Node) (time.Time, error) {
	lease, err := look(ctx, p.opt.Client, p.opt.Name, n)
	if err != nil || lease.Spec.RenewTime == nil {
		return time.Time{}, err
	}
	return lease.Spec.RenewTime.Time, nil
}

func look(ctx context.Context, client *apiclient.Client, name string, n *corev1.Node) (*coordv1.Lease, error) {
	ctx, cancel := context.WithTimeout(ctx, requestBound)
	defer cancel()
	if err := client.Get(ctx, apiclient.Nodes, "", name, n); err != nil {
		return nil, err
	}
	lease := &coordv1.Lease{}
	return lease, client.Get(ctx, apiclient.Leases, corev1.NamespaceNodeLease, name, lease)
}

// CheckNameConflict looks once whether another machine is alive under a node's name. alive
// says so; err is that of a server that does not answer, or knows no such node.
func CheckNameConflict(ctx context.Context, client *apiclient.Client, name, installation, machine string) (alive, err error) {
	n := &corev1.Node{}
	lease, err := look(ctx, client, name, n)
	if err != nil || made(n, installation, func() string { return machine }) {
		return nil, err
	}
	renewed, holds := lease.Spec.RenewTime, lease.Spec.LeaseDurationSeconds
	if renewed == nil || holds == nil || time.Since(renewed.Time) > time.Duration(*holds)*time.Second {
		return nil, nil
	}
	return fmt.Errorf("another machine has the name %s and is alive (machine ID %s, %s)", name, n.Status.NodeInfo.MachineID, addressOf(n)), nil
}

func addressOf(n *corev1.Node) string {
	for _, a := range n.Status.Addresses {
		if a.Type == corev1.NodeInternalIP {
			return "address " + a.Address
		}
	}
	return "no address"
}
