package cli

import (
	"bytes"
	"context"
	"strings"
	"testing"

	"berth/nodeapi"
)

func TestServices(t *testing.T) {
	t.Parallel()
	list := nodeapi.NodeServices{Proxy: "on", Services: []nodeapi.Service{{
		Namespace: "default", Name: "web", Type: "NodePort", ClusterIPs: []string{"10.43.0.7"},
		Summary:  "this node sends connections to 1 of 2 endpoints",
		Problems: []string{"NodePort 30080/TCP drops connections of other hosts."},
		Frontends: []nodeapi.ServiceFrontend{
			{Kind: "ClusterIP", Address: "10.43.0.7:80", Protocol: "TCP", Action: "to 1 endpoints"},
		},
		Ports: []nodeapi.ServicePort{{Name: "http", Port: 80, Protocol: "TCP", Endpoints: []nodeapi.ServiceEndpoint{
			{Address: "10.1.0.2:8080", Pod: "web-1", Node: "n1", Used: true},
			{Address: "10.1.0.3:8080", Pod: "web-2", Node: "n2", Reason: "not ready"},
		}}},
	}}}
	var table, notes, one bytes.Buffer
	if err := writeServices(&table, &notes, list); err != nil {
		t.Fatal(err)
	}
	if err := writeService(&one, list); err != nil {
		t.Fatal(err)
	}
	if got := strings.Fields(table.String()); got[len(got)-3] != "1" || got[len(got)-1] != "2" || notes.Len() > 0 {
		t.Errorf("got table %q and notes %q", table.String(), notes.String())
	}
	want := `default/web (NodePort)
  NodePort 30080/TCP drops connections of other hosts.
  ClusterIP 10.43.0.7:80/TCP: to 1 endpoints

  Endpoints of port 80/TCP http:
    10.1.0.2:8080 (web-1 n1): used
    10.1.0.3:8080 (web-2 n2): not used: not ready
`
	if one.String() != want {
		t.Errorf("got\n%s\nwant\n%s", one.String(), want)
	}
	why := `this node sends connections to 1 of 2 endpoints

Problems:
  NodePort 30080/TCP drops connections of other hosts.

Addresses:
  ClusterIP 10.43.0.7:80/TCP: to 1 endpoints

  Endpoints of port 80/TCP http:
    10.1.0.2:8080 (web-1 n1): used
    10.1.0.3:8080 (web-2 n2): not used: not ready

Details of a pod, on its node: berth why default/web-2
`
	if got := whyServiceText(list.Services[0]); got != why {
		t.Errorf("got\n%s\nwant\n%s", got, why)
	}
	for state, want := range map[string]string{
		"off": "serviceProxy", "unknown": "has not reached its API server",
	} {
		notes.Reset()
		if err := writeServices(&table, &notes, nodeapi.NodeServices{Proxy: state}); err != nil ||
			!strings.Contains(notes.String(), want) {
			t.Errorf("proxy %s: got %q, %v", state, notes.String(), err)
		}
	}
}

func TestDNSAnswer(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	err := writeDNSAnswer(&out, nodeapi.DNSAnswer{
		Name: "web.default.svc.cluster.local.", Type: "A", Rcode: "NOERROR", Source: "kubernetes", Seconds: 0.0004,
		Answers:   []string{"web.default.svc.cluster.local. 30 IN A 10.43.0.7"},
		Endpoints: []nodeapi.DNSServiceEndpoint{{Service: "default/web", Address: "10.1.0.2", Pod: "web-1"}},
	})
	want := `web.default.svc.cluster.local. A: NOERROR, from kubernetes, in 0.4 ms
  web.default.svc.cluster.local. 30 IN A 10.43.0.7
Endpoints of the Service:
  default/web 10.1.0.2 web-1: not ready, without records
`
	if err != nil || out.String() != want {
		t.Errorf("got %v\n%s\nwant\n%s", err, out.String(), want)
	}
}

func TestWhyService(t *testing.T) {
	t.Parallel()
	h := fakeAgent()
	h.Services = func(_ context.Context, namespace, name string) (nodeapi.NodeServices, error) {
		svc := nodeapi.Service{Namespace: "shop", Name: "web", Summary: "this node sends connections"}
		if namespace != "shop" || name != "" && name != "web" {
			return nodeapi.NodeServices{}, nodeapi.NotFound(name)
		}
		return nodeapi.NodeServices{Proxy: "on", Services: []nodeapi.Service{svc}}, nil
	}
	path := socket(t, h)
	for _, args := range [][]string{
		{"why", "service", "web", "-n", "shop"}, {"why", "svc/web", "-n", "shop"},
		{"why", "Services/web", "-n", "shop"},
		{"why", "svc/web", "-n", "shop", "-o", "json"},
	} {
		stdout, stderr, code := run(t, path, invocation{args: args})
		if code != 0 || !strings.Contains(stdout, "this node sends connections") {
			t.Errorf("%v: got exit %d, %q, %q", args, code, stdout, stderr)
		}
	}
	if _, stderr, code := run(t, path, invocation{args: []string{"why", "svc/other", "-n", "shop"}}); code == 0 {
		t.Errorf("a Service that does not exist: got exit 0, %q", stderr)
	}
	stdout, _, _ := run(t, path, invocation{args: []string{"__complete", "why", "-n", "shop", "svc/"}})
	if !strings.HasPrefix(stdout, "svc/web\n") {
		t.Errorf("got completion %q", stdout)
	}
}
