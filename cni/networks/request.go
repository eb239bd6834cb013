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

// Request is one network that a pod asks for.
type Request struct {
	Name      string   `json:"name"`
	Namespace string   `json:"namespace,omitempty"` // says nothing here: networks are the node's
	Interface string   `json:"interface,omitempty"`
	IPs       []string `json:"ips,omitempty"`
	MAC       string   `json:"mac,omitempty"`
}

// most is how many networks a pod may ask for.
const most = 32

var (
	networkName   = regexp.MustCompile(`^[a-zA-Z0-9][a-zA-Z0-9_.-]*$`)
	interfaceName = regexp.MustCompile(`^[a-zA-Z0-9_.-]{1,15}$`)
)

// requests reads a pod's annotation: a list of JSON, or [NAMESPACE/]NAME[@INTERFACE]
// with commas between. Interfaces without a name are net1, net2 and so on.
func requests(pod *corev1.Pod) ([]Request, error) {
	text := podspec.Networks(pod)
	if text == "" {
		return nil, nil
	}
	if pod.Spec.HostNetwork {
		return nil, errors.New("a pod on the host's network cannot be attached to others")
	}
	list, err := parse(text)
	if err != nil {
		return nil, err
	}
	if len(list) > most {
		return nil, fmt.Errorf("asks for %d networks, at most %d can be had", len(list), most)
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
			return nil, fmt.Errorf("network %q: the interface %s is taken already", r.Name, r.Interface)
		}
		taken[r.Interface] = true
	}
	return list, nil
}

func parse(text string) (list []Request, err error) {
	if strings.HasPrefix(text, "[") {
		d := json.NewDecoder(bytes.NewReader([]byte(text)))
		d.DisallowUnknownFields() // what is asked for in them would be missing
		if err := d.Decode(&list); err != nil {
			return nil, err
		}
		if d.More() {
			return nil, errors.New("there is something after the list")
		}
		return list, nil
	}
	for part := range strings.SplitSeq(text, ",") {
		var r Request
		name, iface, named := strings.Cut(strings.TrimSpace(part), "@")
		if named && iface == "" {
			return nil, fmt.Errorf("%q: no interface after @", part)
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
		return fmt.Errorf("%q is no name of a network", r.Name)
	}
	if !interfaceName.MatchString(r.Interface) || r.Interface == "." || r.Interface == ".." {
		return fmt.Errorf("network %q: %q is no name of an interface", r.Name, r.Interface)
	}
	for _, ip := range r.IPs {
		if _, err := netip.ParsePrefix(ip); err == nil {
			continue
		}
		if _, err := netip.ParseAddr(ip); err != nil {
			return fmt.Errorf("network %q: %q is no address", r.Name, ip)
		}
	}
	if r.MAC != "" {
		if _, err := net.ParseMAC(r.MAC); err != nil {
			return fmt.Errorf("network %q: %q is no hardware address", r.Name, r.MAC)
		}
	}
	return nil
}
