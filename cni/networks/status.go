package networks

import (
	"encoding/json"

	types100 "github.com/containernetworking/cni/pkg/types/100"
	"k8s.io/apimachinery/pkg/types"

	"berth/podspec"
)

// StatusAnnotation is where a pod's networks are told, as a list of JSON.
const StatusAnnotation = podspec.NetworkStatusAnnotation

// Status is what is told of one network of a pod, in the words of the annotation.
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

// SetDefaultNetwork notes the network that the runtime has made, which is told beside the
// others.
func (n *Networks) SetDefaultNetwork(sandbox, network string, ips []string) error {
	n.mu.Lock()
	e := n.entries[sandbox]
	if e == nil || len(ips) == 0 {
		n.mu.Unlock()
		return nil
	}
	more := *e
	n.mu.Unlock()
	more.told = false
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

// Status is the content of the annotation for a pod; empty: it has no such
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

// StatusChanged is readable when somebody's status was not told yet.
func (n *Networks) StatusChanged() <-chan struct{} { return n.changed }

// ReportStatuses has every status told that was not, and keeps those that failed for the
// next time. It reports whether any has.
func (n *Networks) ReportStatuses(tell func(p Pod, annotation string) error) (failed bool) {
	for _, e := range n.all(func(e *entry) bool { return e.Done && !e.told }) {
		if tell(e.Pod, e.annotation()) != nil {
			failed = true
			continue
		}
		n.mu.Lock()
		e.told = true
		n.mu.Unlock()
	}
	return failed
}
