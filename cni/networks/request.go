package networks

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"regexp"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"berth/podspec"
)

// Request is one network that a pod requests.
type Request struct {
	Name      string   `json:"name"`
	Namespace string   `json:"namespace,omitempty"` // ignored: networks are configured per node
	Interface string   `json:"interface,omitempty"`
	IPs       []string `json:"ips,omitempty"`
	MAC       string   `json:"mac,omitempty"`
}

// maxNetworks limits the networks of a pod.
const maxNetworks = 32

var (
	networkName   = regexp.MustCompile(`^[a-zA-Z0-9][a-zA-Z0-9_.-]*$`)
	interfaceName = regexp.MustCompile(`^[a-zA-Z0-9_.-]{1,15}$`)
)

// requests parses the pod annotation: a JSON list, or [NAMESPACE/]NAME[@INTERFACE] separated by
// commas. Unnamed interfaces are net1, net2 and so on.
func requests(pod *corev1.Pod) ([]Request, error) {
	text := podspec.Networks(pod)
	if text == "" {
		return nil, nil
	}
	if pod.Spec.HostNetwork {
		return nil, errors.New("additional networks require a pod network: hostNetwork is set")
	}
	list, err := parse(text)
	if err != nil {
		return nil, err
	}
	if len(list) > maxNetworks {
		return nil, fmt.Errorf("%d networks requested, at most %d are allowed", len(list), maxNetworks)
	}
	taken := map[string]bool{"eth0": true, "lo": true}
	for i := range list {
		r := &list[i]
		if r.Interface == "" {
			r.Interface = fmt.Sprintf("net%d", i+1)
		}
		if err := r.check(); err != nil {
			return nil, err
		}
		if taken[r.Interface] {
			return nil, fmt.Errorf("network %q: interface %s is already in use", r.Name, r.Interface)
		}
		taken[r.Interface] = true
	}
	return list, nil
}

func parse(text string) (list []Request, err error) {
	if strings.HasPrefix(text, "[") {
		d := json.NewDecoder(bytes.NewReader([]byte(text)))
		d.DisallowUnknownFields() // they would be ignored silently
		if err := d.Decode(&list); err != nil {
			return nil, err
		}
		if d.More() {
			return nil, errors.New("unexpected data after the list")
		}
		return list, nil
	}
	for part := range strings.SplitSeq(text, ",") {
		var r Request
		name, iface, named := strings.Cut(strings.TrimSpace(part), "@")
		if named && iface == "" {
			return nil, fmt.Errorf("%q: missing interface after @", part)
		}
		r.Interface = iface
		if namespace, rest, ok := strings.Cut(name, "/"); ok {
			r.Namespace, name = namespace, rest
		}
		r.Name = name
		list = append(list, r)
	}
	return list, nil
}

func (r *Request) check() error {
	if !networkName.MatchString(r.Name) {
		return fmt.Errorf("%q is not a valid network name", r.Name)
	}
	if !interfaceName.MatchString(r.Interface) || r.Interface == "." || r.Interface == ".." {
		return fmt.Errorf("network %q: %q is not a valid interface name", r.Name, r.Interface)
	}
	for _, ip := range r.IPs {
		if _, err := netip.ParsePrefix(ip); err == nil {
			continue
		}
		if _, err := netip.ParseAddr(ip); err != nil {
			return fmt.Errorf("network %q: %q is not an IP address", r.Name, ip)
		}
	}
	if r.MAC != "" {
		if _, err := net.ParseMAC(r.MAC); err != nil {
			return fmt.Errorf("network %q: %q is not a MAC address", r.Name, r.MAC)
		}
	}
	return nil
}
