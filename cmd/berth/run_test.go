package main

import (
	"strings"
	"testing"

	"berth/nodeconfig"
)

func TestJoiningAServerIsRefusedByTheFlagThatAskedForIt(t *testing.T) {
	for want, config := range map[string]nodeconfig.Config{
		"":                         {},
		"--kubeconfig: ":           {Kubeconfig: "k"},
		"--bootstrap-kubeconfig: ": {BootstrapKubeconfig: "b"},
	} {
		err := standaloneOnly(&config)
		if want == "" && err != nil || want != "" && (err == nil || !strings.HasPrefix(err.Error(), want)) {
			t.Errorf("%+v: %v, want %q", config, err, want)
		}
	}
}
