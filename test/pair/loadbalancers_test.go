package pair

import (
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
)

// requireAddressConflict creates the Service lb while another host has its address. The nodes say so, and announce the
// address when the host has given it up.
func (w *TwoHosts) requireAddressConflict() {
	w.t.Helper()
	address := poolAddress(w.lan).String()
	router := func(change func(netlink.Link, *netlink.Addr) error) {
		w.t.Helper()
		err := w.lan.RunOutside(func() error {
			bridge, err := netlink.LinkByName("lan")
			if err != nil {
				return err
			}
			a, err := netlink.ParseAddr(address + "/32")
			return errors.Join(err, change(bridge, a))
		})
		if err != nil {
			w.t.Fatal(err)
		}
	}
	router(netlink.AddrAdd)
	w.Apply(w.t, "apiVersion: v1\nkind: Service\nmetadata: {name: lb}\n"+
		"spec: {type: LoadBalancer, selector: {app: web}, ports: [{port: 80, targetPort: http}]}")
	for _, p := range []*Pair{w.A, w.B} {
		p.waitUntil("the conflict in berth why", func() string {
			out, _ := p.Agent.Command(w.t.Context(), "why", "svc/lb").CombinedOutput()
			if strings.Contains(string(out), address+" is not announced: the host with hardware address ") {
				return ""
			}
			return string(out)
		})
	}
	uid := w.A.field("service", "lb", ".metadata.uid")
	w.A.waitUntil("an event of the Service", func() string {
		out := w.Kubectl(w.t, "get", "events", "--field-selector",
			"involvedObject.kind=Service,involvedObject.uid="+uid+",reason=LoadBalancerAddressConflict",
			"-o", "jsonpath={.items[*].message}")
		if strings.Contains(out, address+" is not announced") {
			return ""
		}
		return out
	})
	router(netlink.AddrDel)
}

// failoverBound is the documented time until another node has the address of a load balancer. It is checked with
// BERTH_TORTURE, when no other tests keep the machine busy.
const failoverBound = 3 * time.Second

// neighbor returns the hardware address at which this machine reaches an address of the LAN.
func (w *TwoHosts) neighbor(address string) string {
	w.t.Helper()
	all, err := netlink.NeighList(0, netlink.FAMILY_V4)
	if err != nil {
		w.t.Fatal(err)
	}
	for i := range all {
		if all[i].IP.String() == address {
			return all[i].HardwareAddr.String()
		}
	}
	w.t.Fatalf("this machine does not know %s", address)
	return ""
}

// requireFailover stops the agent of the node that announces the address of the Service lb. The other node takes
// over, also while the first one is not gone.
func (w *TwoHosts) requireFailover() {
	w.t.Helper()
	address := poolAddress(w.lan).String()
	announcedBy := func(on *Pair) string {
		text, _ := on.Agent.Command(w.t.Context(), "services", "lb").CombinedOutput()
		_, name, _ := strings.Cut(string(text), "announced by node ")
		name, _, _ = strings.Cut(name, "\n")
		return name
	}
	first, second := w.A, w.B
	w.A.waitUntil("an announcer of "+address, func() string {
		name := announcedBy(w.A)
		if name == w.B.Node {
			first, second = w.B, w.A
		}
		if onB := announcedBy(w.B); name == "" || name != onB {
			return fmt.Sprintf("got %q and %q", name, onB)
		}
		return ""
	})
	reachable := func() {
		w.A.waitUntil("an answer from "+address, func() string {
			if _, err := get(w.t.Context(), "http://"+address+"/"); err != nil {
				return err.Error()
			}
			return ""
		})
	}
	reachable()
	before := w.neighbor(address)
	if err := first.Agent.Kill9(); err != nil {
		w.t.Fatal(err)
	}
	began := time.Now()
	for now := before; now == before || now == ""; now = w.neighbor(address) { // asks the kernel only
		if time.Since(began) > waitTimeout {
			w.t.Fatalf("%s stays with %s", address, before)
		}
		time.Sleep(10 * time.Millisecond) // between two looks
	}
	took := time.Since(began)
	w.t.Logf("this machine reaches %s at another node after %s", address, took.Round(10*time.Millisecond))
	if took > failoverBound && os.Getenv("BERTH_TORTURE") != "" {
		w.t.Errorf("failover took %s, want at most %s", took, failoverBound)
	}
	w.A.waitUntil("the other node to announce "+address, func() string {
		if name := announcedBy(second); name != second.Node {
			return fmt.Sprintf("got %q, want %q", name, second.Node)
		}
		return ""
	})
	reachable()
	if err := first.Agent.Start(w.t.Context()); err != nil {
		w.t.Fatal(err)
	}
	w.A.waitUntil("the returned agent to leave "+address+" to the other node", func() string {
		if name := announcedBy(first); name != second.Node {
			return fmt.Sprintf("got %q, want %q", name, second.Node)
		}
		return ""
	})
}

// requireLoadBalancer reaches a Service of type LoadBalancer from another host at the address of the node, and checks
// what berth says of a second one with the same port.
func (p *Pair) requireLoadBalancer() {
	p.t.Helper()
	address := net.JoinHostPort(p.Host.Gateway.String(), "8081")
	p.waitUntil("an answer from the load balancer", func() string {
		if _, err := get(p.t.Context(), "http://"+address+"/"); err != nil {
			return err.Error()
		}
		return ""
	})
	problem := "port 8081/TCP of " + p.Host.Gateway.String() + " belongs to Service default/lb"
	for _, row := range []struct {
		args []string
		want string
	}{
		{[]string{"services", "lb"}, "LoadBalancer " + address + "/TCP: to 1 endpoint"},
		{[]string{"services"}, p.Host.Gateway.String()},
		{[]string{"why", "svc/lb-again"}, problem},
		{[]string{"services", "lb-again"}, problem},
		{[]string{"services", "lb-again"}, "ClusterIP 10.43."},
		{[]string{"events"}, problem},
	} {
		out, err := p.Agent.Command(p.t.Context(), row.args...).CombinedOutput()
		if err != nil || !strings.Contains(string(out), row.want) {
			p.t.Errorf("berth %s: %v, want %q in:\n%s", strings.Join(row.args, " "), err, row.want, out)
		}
	}
}
