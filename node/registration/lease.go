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
	renewalsPerLease = 4                     // renewals per lease duration
	reconnectAfter   = 2                     // failures in a row before a new connection
	leaseRetryMin    = 50 * time.Millisecond // first retry if the Node does not exist yet
)

// errNoNode means that there is neither a lease to renew nor a Node that could own one.
var errNoNode = errors.New("node not registered yet")

// renewLease renews the lease until ctx ends. It does not read the lease: the holder
// of the node's identity owns it.
func (p *Registrar) renewLease(ctx context.Context) {
	every := p.opt.LeaseDuration / renewalsPerLease
	failed := 0 // times in a row
	for wait := time.Duration(0); ; {
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
		began := p.opt.Now()
		err := p.renewLeaseOnce(ctx, min(every, requestTimeout))
		if ctx.Err() != nil {
			return
		}
		if errors.Is(err, errNoNode) { // usually registered soon
			wait = min(max(2*wait, leaseRetryMin), time.Second, every)
			continue
		}
		p.opt.OnLeaseRenewed(p.opt.Now().Sub(began), err)
		wait = min(time.Second, every)
		switch {
		case err == nil:
			wait = every
			if failed > 0 {
				p.opt.Log.Info("node lease renewed after failures")
			}
			failed = 0
			continue
		case failed == 0:
			p.opt.Log.Warn("node lease renewal failed; retrying", "err", err)
		}
		failed++
		p.reconnect(failed, err)
	}
}

// reconnect closes unresponsive connections after several failures in a row: a broken network path
// would otherwise remain undetected for up to a minute, until the lease has expired. The connection
// of the watches is closed only once, because repeated lists would add to the load of a slow
// server.
func (p *Registrar) reconnect(failed int, err error) {
	var answer apierrors.APIStatus
	if failed%reconnectAfter != 0 || errors.As(err, &answer) {
		return
	}
	p.opt.HeartbeatClient.Close()
	if failed == reconnectAfter {
		p.opt.Client.Close()
	}
}

func (p *Registrar) renewLeaseOnce(ctx context.Context, bound time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, bound)
	defer cancel()
	now := metav1.NewMicroTime(p.opt.Now())
	seconds := int32(p.opt.LeaseDuration / time.Second)
	spec := coordv1.LeaseSpec{HolderIdentity: &p.opt.Name, LeaseDurationSeconds: &seconds, RenewTime: &now}
	patch, err := json.Marshal(map[string]any{"spec": spec})
	if err != nil {
		return err
	}
	err = p.opt.HeartbeatClient.Patch(
		ctx,
		apiclient.Leases,
		corev1.NamespaceNodeLease,
		p.opt.Name,
		types.MergePatchType,
		patch,
		nil,
	)
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

// verifyName checks that no other live machine uses the node's name. Whether a machine is alive shows in a renewal
// of its lease, not in the time of the last one, which its own clock has written. verifyName does not wait for an
// unreachable server, because pods on this host must run.
func (p *Registrar) verifyName(ctx context.Context) error {
	n := &corev1.Node{}
	first, err := p.leaseRenewedAt(ctx, n)
	if err != nil || first.IsZero() || p.isOwn(ctx, n) {
		return nil //nolint:nilerr // no conflict, or it cannot be determined
	}
	p.opt.Log.Warn("node name was registered by another installation; checking whether it renews the lease",
		"node", p.opt.Name, "renewed", first)
	read := func(ctx context.Context) (time.Time, error) { return p.leaseRenewedAt(ctx, n) }
	if !renewedWithin(ctx, read, first, p.opt.LeaseDuration, p.opt.LeaseDuration/renewalsPerLease) {
		return nil
	}
	return fmt.Errorf("%w: set another name with --hostname-override, or stop berth on that machine if this one "+
		"replaces it", nameInUseError(p.opt.Name, n))
}

// renewedWithin reports whether a lease is renewed within a time. It reads the time of the last renewal in the
// given interval, and returns early when ctx ends.
func renewedWithin(ctx context.Context, read func(context.Context) (time.Time, error), first time.Time,
	within, interval time.Duration,
) bool {
	for waited := time.Duration(0); waited < within; waited += interval {
		select {
		case <-ctx.Done():
			return false
		case <-time.After(interval):
		}
		if again, err := read(ctx); err == nil && !again.IsZero() && !again.Equal(first) {
			return true
		}
	}
	return false
}

func nameInUseError(name string, n *corev1.Node) error {
	return fmt.Errorf("node name %s is in use by another machine (machine ID %s, %s)",
		name, n.Status.NodeInfo.MachineID, addressOf(n))
}

// isOwn reports whether this installation created a Node, or a node agent on this machine that sets
// no annotation.
func (p *Registrar) isOwn(ctx context.Context, n *corev1.Node) bool {
	return sameInstallation(n, p.opt.Installation, func() string { return p.opt.Facts(ctx).System.MachineID })
}

func sameInstallation(n *corev1.Node, installation string, machine func() string) bool {
	if by := n.Annotations[InstallationAnnotation]; by != "" {
		return by == installation
	}
	return n.Status.NodeInfo.MachineID == "" || n.Status.NodeInfo.MachineID == machine()
}

// leaseRenewedAt reads the Node of this name and the time of its last lease renewal.
func (p *Registrar) leaseRenewedAt(ctx context.Context, n *corev1.Node) (time.Time, error) {
	lease, err := getNodeAndLease(ctx, p.opt.Client, p.opt.Name, n)
	return renewTime(lease), err
}

// renewTime returns the time of the last renewal; zero: there is none. lease may be nil.
func renewTime(lease *coordv1.Lease) time.Time {
	if lease == nil || lease.Spec.RenewTime == nil {
		return time.Time{}
	}
	return lease.Spec.RenewTime.Time
}

func getNodeAndLease(
	ctx context.Context,
	client *apiclient.Client,
	name string,
	n *corev1.Node,
) (*coordv1.Lease, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	if err := client.Get(ctx, apiclient.Nodes, "", name, n); err != nil {
		return nil, err
	}
	lease := &coordv1.Lease{}
	return lease, client.Get(ctx, apiclient.Leases, corev1.NamespaceNodeLease, name, lease)
}

// CheckNameConflict checks whether another live machine uses a node name. alive describes it. If the Node
// belongs to another machine, the check waits for a renewal of its lease, at most half of the lease's
// duration. err is the error of an unresponsive server or a missing Node.
func CheckNameConflict(
	ctx context.Context,
	client *apiclient.Client,
	name, installation, machine string,
) (alive, err error) {
	n := &corev1.Node{}
	lease, err := getNodeAndLease(ctx, client, name, n)
	if err != nil || sameInstallation(n, installation, func() string { return machine }) {
		return nil, err
	}
	first, seconds := renewTime(lease), lease.Spec.LeaseDurationSeconds
	if first.IsZero() || seconds == nil {
		return nil, nil
	}
	read := func(ctx context.Context) (time.Time, error) {
		again, err := getNodeAndLease(ctx, client, name, n)
		return renewTime(again), err
	}
	within := 2 * time.Duration(*seconds) * time.Second / renewalsPerLease
	if !renewedWithin(ctx, read, first, within, time.Second) {
		return nil, nil
	}
	return nameInUseError(name, n), nil
}

func addressOf(n *corev1.Node) string {
	for _, a := range n.Status.Addresses {
		if a.Type == corev1.NodeInternalIP {
			return "address " + a.Address
		}
	}
	return "no address"
}
