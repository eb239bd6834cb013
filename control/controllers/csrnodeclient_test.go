package controllers

import (
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// nodeClientFacts are the parts of a nodeClientRequest that vary in the table.
type nodeClientFacts struct {
	requester                    nodeRequester
	machine, credential, forNode string
	noNode                       bool
	nodeMachine, issued, used    string
	ready                        corev1.ConditionStatus // "": no condition
	leaseAge                     time.Duration          // of the last renewal
	noLease, noRenewTime         bool
}

func (f nodeClientFacts) request() *nodeClientRequest {
	now := time.Unix(1e9, 0)
	r := &nodeClientRequest{name: "n", requester: f.requester, machineID: f.machine, credential: f.credential,
		forNode: f.forNode, now: now}
	if !f.noNode {
		r.node = newNode("n", f.ready)
		r.node.Status.NodeInfo.MachineID = f.nodeMachine
		if f.ready == "" {
			r.node.Status.Conditions = nil
		}
		if f.issued != "" {
			r.node.Annotations = map[string]string{IssuedCertificateAnnotation: f.issued}
		}
	}
	if !f.noLease {
		seconds, renewed := int32(40), metav1.NewMicroTime(now.Add(-f.leaseAge))
		r.lease = &coordinationv1.Lease{Spec: coordinationv1.LeaseSpec{LeaseDurationSeconds: &seconds,
			RenewTime: &renewed}}
		if f.noRenewTime {
			r.lease.Spec.RenewTime = nil
		}
		if f.used != "" {
			r.lease.Annotations = map[string]string{UsedCertificateAnnotation: f.used}
		}
	}
	return r
}

func TestDecideNodeClientRequest(t *testing.T) {
	t.Parallel()
	const dead, unknown = time.Hour, corev1.ConditionUnknown
	const wait = ""
	for _, row := range []struct {
		name  string
		facts nodeClientFacts
		want  string // reason; "": too early
	}{
		{"a new node", nodeClientFacts{noNode: true, noLease: true}, "AutoApproved"},
		{"a new node with a token for another one", nodeClientFacts{noNode: true, noLease: true, forNode: "other"},
			"TokenForOtherNode"},
		{"a running node", nodeClientFacts{requester: runningNode, nodeMachine: "m", ready: "True"}, "AutoApproved"},

		{"join as an existing node", nodeClientFacts{machine: "m", nodeMachine: "m", ready: unknown, leaseAge: dead},
			"NodeExists"},
		{"join as a Node without status", nodeClientFacts{machine: "m", noLease: true}, "NodeExists"},
		{"join with consent", nodeClientFacts{machine: "m", nodeMachine: "m", ready: unknown, leaseAge: dead,
			forNode: "n"}, "AutoApproved"},
		{"join with consent from another host", nodeClientFacts{machine: "new", nodeMachine: "m", ready: unknown,
			leaseAge: dead, forNode: "n"}, "AutoApproved"},
		{"join with consent without a machine ID", nodeClientFacts{nodeMachine: "m", ready: unknown, leaseAge: dead,
			forNode: "n"}, "AutoApproved"},
		{"join with consent to another name", nodeClientFacts{machine: "m", nodeMachine: "m", ready: unknown,
			leaseAge: dead, forNode: "other"}, "TokenForOtherNode"},
		{"join with consent on the host of the running node", nodeClientFacts{machine: "m", nodeMachine: "m",
			ready: "True", forNode: "n"}, "AutoApproved"},
		{"join with consent while another host is running", nodeClientFacts{machine: "new", nodeMachine: "m",
			ready: "True", forNode: "n"}, "NodeNameInUse"},
		{"join without a machine ID while a node is running", nodeClientFacts{nodeMachine: "m", ready: "False",
			forNode: "n"}, "NodeNameInUse"},
		{"both hosts without a machine ID", nodeClientFacts{ready: "True", forNode: "n"}, "NodeNameInUse"},
		{"another host renews its lease, but is not ready yet", nodeClientFacts{machine: "new", nodeMachine: "m",
			ready: unknown, leaseAge: time.Second, forNode: "n"}, "NodeNameInUse"},

		{"return with the last certificate", nodeClientFacts{requester: returningNode, machine: "m", nodeMachine: "m",
			credential: "b", issued: "b", used: "b", ready: unknown, leaseAge: dead}, "AutoApproved"},
		{"return with the last certificate, which was never used", nodeClientFacts{requester: returningNode,
			machine: "m", nodeMachine: "m", credential: "b", issued: "b", used: "a", ready: unknown, leaseAge: dead},
			"AutoApproved"},
		{"return with the predecessor of a certificate that was never used", nodeClientFacts{requester: returningNode,
			machine: "m", nodeMachine: "m", credential: "a", issued: "b", used: "a", ready: unknown, leaseAge: dead},
			"AutoApproved"},
		{"return with the predecessor of a certificate in use", nodeClientFacts{requester: returningNode, machine: "m",
			nodeMachine: "m", credential: "a", issued: "b", used: "b", ready: unknown, leaseAge: dead},
			"CertificateSuperseded"},
		{"return with an older certificate", nodeClientFacts{requester: returningNode, machine: "m", nodeMachine: "m",
			credential: "0", issued: "b", used: "a", ready: unknown, leaseAge: dead}, "CertificateSuperseded"},
		{"return to a Node without records", nodeClientFacts{requester: returningNode, machine: "m", nodeMachine: "m",
			credential: "a", ready: unknown, leaseAge: dead}, "CertificateSuperseded"},
		{"return with the last used one of an earlier release", nodeClientFacts{requester: returningNode, machine: "m",
			nodeMachine: "m", credential: "a", used: "a", ready: unknown, leaseAge: dead}, "AutoApproved"},
		{"return without a certificate ID", nodeClientFacts{requester: returningNode, machine: "m", nodeMachine: "m",
			ready: unknown, leaseAge: dead}, "CertificateSuperseded"},
		{"return after the lease was deleted", nodeClientFacts{requester: returningNode, machine: "m",
			nodeMachine: "m", credential: "b", issued: "b", ready: unknown, noLease: true}, "AutoApproved"},
		{"return from another host", nodeClientFacts{requester: returningNode, machine: "new", nodeMachine: "m",
			credential: "b", issued: "b", ready: unknown, leaseAge: dead}, "OtherMachine"},
		{"return without a machine ID", nodeClientFacts{requester: returningNode, nodeMachine: "m", credential: "b",
			issued: "b", ready: unknown, leaseAge: dead}, "OtherMachine"},
		{"return without a machine ID to a Node without one", nodeClientFacts{requester: returningNode,
			credential: "b", issued: "b", ready: unknown, leaseAge: dead}, "OtherMachine"},
		{"return of a removed node", nodeClientFacts{requester: returningNode, machine: "m", credential: "b",
			noNode: true}, "NodeRemoved"},
		{"return while the node is ready", nodeClientFacts{requester: returningNode, machine: "m", nodeMachine: "m",
			credential: "b", issued: "b", ready: "True", leaseAge: dead}, wait},
		{"return while the lease is alive", nodeClientFacts{requester: returningNode, machine: "m", nodeMachine: "m",
			credential: "b", issued: "b", ready: unknown, leaseAge: 39 * time.Second}, wait},
		{"return after the lease has expired", nodeClientFacts{requester: returningNode, machine: "m",
			nodeMachine: "m", credential: "b", issued: "b", ready: unknown, leaseAge: 40 * time.Second},
			"AutoApproved"},
		{"return while the lease is alive by a fast clock", nodeClientFacts{requester: returningNode, machine: "m",
			nodeMachine: "m", credential: "b", issued: "b", ready: unknown, leaseAge: -39 * time.Second}, wait},
		{"return with a lease of the far future", nodeClientFacts{requester: returningNode, machine: "m",
			nodeMachine: "m", credential: "b", issued: "b", ready: unknown, leaseAge: -dead}, "AutoApproved"},
		{"return with a lease that was never renewed", nodeClientFacts{requester: returningNode, machine: "m",
			nodeMachine: "m", credential: "b", issued: "b", ready: unknown, noRenewTime: true}, "AutoApproved"},
	} {
		if got := row.facts.request().decide(); got.reason != row.want {
			t.Errorf("%s: got %q (%s), want %q", row.name, got.reason, got.message, row.want)
		}
	}
}
