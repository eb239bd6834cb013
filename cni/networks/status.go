package networks

import (
	"encoding/json"

	types100 "github.com/containernetworking/cni/pkg/types/100"
	"k8s.io/apimachinery/pkg/types"

	"berth/podspec"
)

// StatusAnnotation is the annotation with the network status of a pod, a JSON list.
const StatusAnnotation = podspec.NetworkStatusAnnotation

// Status is the status of one network of a pod, in the format of the annotation.
type Status struct {
	Name      string   `json:"name"`
	Interface string   `json:"interface,omitempty"`
	IPs       []string `json:"ips,omitempty"`
	MAC       string   `json:"mac,omitempty"`
	Default   bool     `json:"default,omitempty"`
	DNS       struct{} `json:"dns"`
}

func statusOf(namespace string, r Request, result *types100.Result) Status {
	if r.Namespace != "" {
		namespace = r.Namespace
	}
	s := Status{Name: namespace + "/" + r.Name, Interface: r.Interface}
	for _, ip := range result.IPs {
		s.IPs = append(s.IPs, ip.Address.IP.String())
	}
	for _, i := range result.Interfaces {
		if i.Sandbox != "" && i.Name == r.Interface {
			s.MAC = i.Mac
		}
	}
	return s
}

// SetDefaultNetwork adds the default network, which the runtime has attached, to the status of a
// sandbox.
func (n *Networks) SetDefaultNetwork(sandbox, network string, ips []string) error {
	n.mu.Lock()
	e := n.entries[sandbox]
	if e == nil || len(ips) == 0 {
		n.mu.Unlock()
		return nil
	}
	more := *e
	n.mu.Unlock()
	more.reported = false
	more.Status = []Status{{Name: network, Interface: "eth0", IPs: ips, Default: true}}
	for _, s := range e.Status {
		if !s.Default {
			more.Status = append(more.Status, s)
		}
	}
	err := n.put(&more)
	select {
	case n.changed <- struct{}{}:
	default:
	}
	return err
}

// Status returns the value of the annotation for a pod. It is empty if the pod has no additional
// networks.
func (n *Networks) Status(uid types.UID) string {
	all := n.all(func(e *entry) bool { return e.Done && e.Pod.UID == uid })
	if len(all) == 0 {
		return ""
	}
	return all[len(all)-1].annotation()
}

func (e *entry) annotation() string {
	text, err := json.Marshal(e.Status)
	if err != nil {
		return ""
	}
	return string(text)
}

// StatusChanged is readable when a status was not reported yet.
func (n *Networks) StatusChanged() <-chan struct{} { return n.changed }

// ReportStatuses calls report for every status that was not reported yet. Failed ones are retried
// by the next call. It returns whether any failed.
func (n *Networks) ReportStatuses(report func(p Pod, annotation string) error) (failed bool) {
	for _, e := range n.all(func(e *entry) bool { return e.Done && !e.reported }) {
		if report(e.Pod, e.annotation()) != nil {
			failed = true
			continue
		}
		n.mu.Lock()
		e.reported = true
		n.mu.Unlock()
	}
	return failed
}
