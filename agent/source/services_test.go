package source

import (
	"fmt"
	"strings"
	"testing"
)

func TestServicesOfFiles(t *testing.T) {
	t.Parallel()
	read := func(text string, before *DesiredState) (*DesiredState, error) {
		return Validate(Input{Path: "a.yaml", Data: []byte(text)}, Identity{NodeName: "n"}, before)
	}
	const head = "apiVersion: v1\nkind: Service\nmetadata: {name: web, uid: x, resourceVersion: '7'}\n"
	web := head + "spec: {selector: {app: web}, ports: [{port: 80}]}\n"
	first, err := read(web, nil)
	if err != nil {
		t.Fatal(err)
	}
	svc := first.Services[0]
	if svc.Namespace != "default" || svc.UID != "" || svc.Spec.Type != "ClusterIP" ||
		svc.Spec.Ports[0].TargetPort.IntVal != 80 || svc.Spec.Ports[0].Protocol != "TCP" {
		t.Errorf("got %+v", svc)
	}
	again, err := read("# edited\n"+web, first)
	if err != nil || again.Services[0] != svc {
		t.Errorf("an unchanged Service is another object: %v", err)
	}
	changed, err := read(strings.Replace(web, "80", "81", 1), first)
	if err != nil || changed.Services[0].ResourceVersion == svc.ResourceVersion {
		t.Errorf("a changed Service has the same version: %v", err)
	}
	for spec, want := range map[string]string{
		"{}":                                 "a.yaml:4: spec.ports: Required value",
		"{clusterIP: x, ports: [{port: 1}]}": "spec.clusterIP: Invalid value: \"x\"",
		"{loadBalancerSourceRanges: [10.0.0.0/8], ports: [{port: 1}]}": "spec.loadBalancerSourceRanges[0]: Forbidden",
		"{type: LoadBalancer, loadBalancerSourceRanges: [x], ports: [{port: 1}]}": "spec.loadBalancerSourceRanges[0]" +
			": Invalid value: \"x\"",
		"{type: Other, ports: [{port: 1}]}":                 "spec.type: Unsupported value",
		"{ports: [{port: 1}, {port: 2}]}":                   "spec.ports[0].name: Required value",
		"{ports: [{port: 1, name: a}, {port: 1, name: b}]}": "spec.ports[1]: Duplicate value",
		"{ports: [{port: 70000}]}":                          "spec.ports[0].port: Invalid value: 70000",
		"{ports: [{port: 1, nodePort: 30000}]}":             "spec.ports[0].nodePort: Forbidden",
		"{ports: [{port: 1, protocol: ICMP}]}":              "spec.ports[0].protocol: Unsupported value",
		"{ports: [{port: 1, targetPort: TOO_long_a_name}]}": "spec.ports[0].targetPort: Invalid value",
		"{type: ExternalName, externalName: 'a b'}":         "spec.externalName: Invalid value",
		"{selector: {a: 'b c'}, ports: [{port: 1}]}":        "spec.selector[a]: Invalid value",
		"{sessionAffinity: Cookie, ports: [{port: 1}]}":     "spec.sessionAffinity: Unsupported value",
		"{externalIPs: [10.0.0.300], ports: [{port: 1}]}":   "spec.externalIPs[0]: Invalid value",

		"{clusterIP: None, selector: {a: b}}":                                              "",
		"{type: LoadBalancer, ports: [{port: 1, nodePort: 30000}]}":                        "",
		"{type: LoadBalancer, loadBalancerSourceRanges: [10.0.0.0/8], ports: [{port: 1}]}": "",
		"{type: ExternalName, externalName: example.org}":                                  "",
		"{type: NodePort, ports: [{port: 1, nodePort: 30000, protocol: UDP}]}":             "",
	} {
		_, err := read(head+"spec: "+spec, nil)
		if got := fmt.Sprint(err); err != nil && !strings.Contains("a.yaml:"+got,
			strings.TrimPrefix(want, "a.yaml:4: ")) ||
			(err == nil) != (want == "") {
			t.Errorf("%s: got %v, want %q", spec, err, want)
		}
	}
}
