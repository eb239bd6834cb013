package cri

import (
	"encoding/json"
	"testing"
	"time"
)

func TestCostsAreReadFromTheConfiguration(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		config string
		want   Costs
	}{
		"containerd 2.4 by default": {
			`{"statsCollectPeriod":"","containerd":{"defaultRuntimeName":"x","runtimes":{` +
				`"x":{"runtimeType":"io.containerd.runc.v2","options":{}}}}}`, Costs{time.Second, "runc"}},
		"containerd 2.4 with a period": {`{"statsCollectPeriod":"1m"}`, Costs{StatsPeriod: time.Minute}},
		"invalid period":               {`{"statsCollectPeriod":"often"}`, Costs{StatsPeriod: time.Second}},
		"containerd 1.6": {`{"statsCollectPeriod":10,"containerd":{"defaultRuntimeName":"runc","runtimes":` +
			`{"runc":{"runtimeType":"io.containerd.runc.v2","options":{"BinaryName":"/usr/bin/crun"}}}}}`,
			Costs{OCIRuntime: "/usr/bin/crun"}},
		"another shim": {`{"containerd":{"defaultRuntimeName":"k","runtimes":{"k":{"runtimeType":` +
			`"io.containerd.kata.v2"}}}}`, Costs{}},
		"another runtime": {`"cri-o"`, Costs{}},
		"nothing":         {``, Costs{}},
	} {
		if got := parseCosts(json.RawMessage(c.config)); got != c.want {
			t.Errorf("%s: got %+v, want %+v", name, got, c.want)
		}
	}
}
