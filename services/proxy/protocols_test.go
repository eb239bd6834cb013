package proxy

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"hash/crc32"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"berth/internal/telemetry/metricstest"
	"berth/services"
)

// sctpInit returns the first packet of an SCTP association, without the IP header.
func sctpInit(from, to uint16) []byte {
	b := binary.BigEndian.AppendUint16(nil, from)
	b = binary.BigEndian.AppendUint16(b, to)
	b = append(b, make([]byte, 8)...)     // verification tag 0, checksum
	b = append(b, 1, 0, 0, 20)            // INIT, 20 bytes
	b = append(b, 1, 2, 3, 4, 0, 1, 0, 0) // tag and window
	b = append(b, 0, 1, 0, 1, 0, 0, 0, 1) // streams and sequence number
	sum := crc32.Checksum(b, crc32.MakeTable(crc32.Castagnoli))
	binary.LittleEndian.PutUint32(b[8:], sum)
	return b
}

// TestSCTP sends raw packets: the kernel of the test need not have SCTP sockets.
func TestSCTP(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.set(service(nil), "10.1.0.12")
	raw := func(n *host, at string) net.PacketConn {
		var c net.PacketConn
		n.must(n.do(func() (err error) {
			c, err = (&net.ListenConfig{}).ListenPacket(context.Background(), "ip4:132", at)
			return err
		}))
		t.Cleanup(func() { _ = c.Close() })
		return c
	}
	server, sender := raw(w.pods[1], "10.1.0.12"), raw(w.pods[0], "10.1.0.11")
	_, err := sender.WriteTo(sctpInit(12345, 90), &net.IPAddr{IP: net.IPv4(10, 43, 0, 1)})
	w.node.must(err)
	_ = server.SetReadDeadline(time.Now().Add(answerTimeout))
	b := make([]byte, 1500)
	n, from, err := server.ReadFrom(b)
	w.node.must(err)
	if want := sctpInit(12345, 9090); !bytes.Equal(b[:n], want) || from.String() != "10.1.0.11" {
		t.Errorf("got %x from %s, want %x", b[:n], from, want)
	}
}

// TestHealthCheckNodePort asks as a load balancer does.
func TestHealthCheckNodePort(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ask := func(port string) (int, string, health) {
		t.Helper()
		var answer health
		var code int
		var weight string
		w.node.must(w.client.do(func() error {
			c := http.Client{Timeout: answerTimeout, Transport: &http.Transport{DisableKeepAlives: true,
				DialContext: func(_ context.Context, network, addr string) (net.Conn, error) {
					c, err := w.client.dial(network, "", addr, answerTimeout)
					if err != nil {
						return nil, err
					}
					return c.Conn, nil
				}}}
			r, err := c.Get("http://192.0.2.1:" + port + "/healthz")
			if err != nil {
				return err
			}
			defer func() { _ = r.Body.Close() }()
			code, weight = r.StatusCode, r.Header.Get("X-Load-Balancing-Endpoint-Weight")
			text, err := io.ReadAll(r.Body)
			if err != nil {
				return err
			}
			return json.Unmarshal(text, &answer)
		}))
		return code, weight, answer
	}
	svc := func(port uint16) *services.Service {
		return service(func(s *services.Service) {
			s.Type, s.ExternalLocal, s.HealthCheckNodePort = corev1.ServiceTypeLoadBalancer, true, port
			s.LoadBalancerIPs = []netip.Addr{netip.MustParseAddr("198.51.100.1")}
		})
	}
	for _, c := range []struct {
		port      uint16
		endpoints []string
		code      int
		weight    string
	}{
		{31000, []string{"10.1.0.11", "10.1.0.12", "10.2.0.11", "fd01::11"}, http.StatusOK, "2"},
		{31000, []string{"10.2.0.11"}, http.StatusServiceUnavailable, "0"},
		{31001, []string{"10.1.0.11"}, http.StatusOK, "1"},
	} {
		w.set(svc(c.port), c.endpoints...)
		code, weight, answer := ask(netip.AddrPortFrom(netip.IPv4Unspecified(), c.port).String()[len("0.0.0.0:"):])
		if code != c.code || weight != c.weight || answer.Service.Name != "web" || !answer.ServiceProxyHealthy {
			t.Errorf("%+v: got %d, weight %s, %+v", c, code, weight, answer)
		}
	}
	check(t, w.client, "tcp", "", "192.0.2.1:31000", "refused")
	w.set(service(nil), "10.1.0.11")
	check(t, w.client, "tcp", "", "192.0.2.1:31001", "refused")
}

// TestHealthCheckNodePortInUse: a port that cannot be opened is reported, and tried again.
func TestHealthCheckNodePortInUse(t *testing.T) {
	t.Parallel()
	w := &world{lab: newLab(t), store: services.NewStore()}
	w.init()
	failed := make(chan error, 10)
	w.configure = func(p *Proxy) {
		p.opt.OnHealthCheckFailure = func(_ services.Name, err error) { failed <- err }
	}
	w.start()
	var l net.Listener
	w.node.must(w.node.do(func() (err error) {
		l, err = (&net.ListenConfig{}).Listen(context.Background(), "tcp", "192.0.2.1:31000")
		return err
	}))
	svc := service(func(s *services.Service) {
		s.Type, s.ExternalLocal, s.HealthCheckNodePort = corev1.ServiceTypeLoadBalancer, true, 31000
	})
	w.set(svc, "10.1.0.11")
	if err := <-failed; err == nil {
		t.Error("no error reported")
	}
	_ = l.Close()
	w.set(svc, "10.1.0.12")
	c, err := w.client.dial("tcp", "", "192.0.2.1:31000", answerTimeout)
	w.node.must(err)
	_ = c.Close()
}

// TestMetrics: names and labels are those of kube-proxy, and the values are what has happened.
func TestMetrics(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.set(service(func(s *services.Service) { s.InternalLocal = true }), "10.2.0.11")
	slice := *endpoints("10.2.0.11")[0]
	slice.ChangedAt = time.Now()
	w.change(func() { w.store.SetSlice(&slice) })
	families, err := w.registry.Gather()
	w.node.must(err)
	metricstest.CheckReference(t, w.registry, "Service proxy")
	page, err := os.ReadFile("../../docs/reference/metrics.md")
	w.node.must(err)
	got := map[string]float64{}
	for _, f := range families {
		if !strings.Contains(string(page), "| `"+f.GetName()+"` | "+strings.ToLower(f.GetType().String())+" |") {
			t.Errorf("%s is not documented", f.GetName())
		}
		for _, m := range f.GetMetric() {
			key := f.GetName()
			for _, l := range m.GetLabel() {
				key += " " + l.GetName() + "=" + l.GetValue()
			}
			got[key] = m.GetGauge().GetValue() + m.GetCounter().GetValue() + float64(m.GetHistogram().GetSampleCount())
		}
	}
	for key, least := range map[string]float64{
		"kubeproxy_sync_proxy_rules_duration_seconds ip_family=IPv4":                                 3,
		"kubeproxy_sync_full_proxy_rules_duration_seconds ip_family=IPv6":                            1,
		"kubeproxy_sync_partial_proxy_rules_duration_seconds ip_family=IPv4":                         2,
		"kubeproxy_network_programming_duration_seconds ip_family=IPv4":                              1,
		"kubeproxy_sync_proxy_rules_last_timestamp_seconds ip_family=IPv4":                           1e9,
		"kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds ip_family=IPv6":                    1e9,
		"kubeproxy_sync_proxy_rules_no_local_endpoints_total ip_family=IPv4 traffic_policy=internal": 3,
		"kubeproxy_sync_proxy_rules_service_changes_total":                                           2,
		"kubeproxy_sync_proxy_rules_endpoint_changes_total":                                          2,
	} {
		if got[key] < least {
			t.Errorf("%s: got %v, want at least %v", key, got[key], least)
		}
	}
	for key, want := range map[string]float64{
		"kubeproxy_sync_proxy_rules_nftables_sync_failures_total ip_family=IPv4":                     0,
		"kubeproxy_sync_proxy_rules_no_local_endpoints_total ip_family=IPv4 traffic_policy=external": 0,
		"kubeproxy_sync_proxy_rules_service_changes_pending":                                         0,
		"kubeproxy_sync_proxy_rules_endpoint_changes_pending":                                        0,
	} {
		if value, there := got[key]; !there || value != want {
			t.Errorf("%s: got %v, want %v", key, value, want)
		}
	}
}

func TestExplainRunning(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.set(service(nil), "10.1.0.12", "10.2.0.11")
	x := w.proxy.Explain(w.store.Service(web))
	if len(x.Frontends) != 6 || len(x.Ports) != 6 || len(x.Ports[0].Endpoints) != 2 {
		t.Errorf("got %+v", x)
	}
	if s := w.proxy.Status(); !s.Synced || s.Err != "" || s.LastSync.IsZero() {
		t.Errorf("got status %+v", s)
	}
}
