package e2e

import (
	"encoding/json"
	"strings"
	"testing"

	"berth/nodeapi"
	"berth/test/hosts"
)

// TestCheckReportsCosts expects the checks of costs on a real containerd. The hosts set a long
// stats_collect_period for containerd 2.
func TestCheckReportsCosts(t *testing.T) {
	forEachContainerd(t, func(t *testing.T, s *Namespace) {
		s.Pod("web", "containers:\n"+sh("c", "", "sleep 1000"))
		s.Running("web")
		var r nodeapi.CheckReport
		if out := s.Berth("check", "-o", "json"); json.Unmarshal([]byte(out), &r) != nil {
			t.Fatal(out)
		}
		items := map[string]nodeapi.CheckItem{}
		for _, it := range r.Items {
			items[it.Name] = it
		}
		statistics, collects := items["runtime statistics"]
		if collects != (s.Host.Version == hosts.Version2) || collects && (!statistics.OK ||
			statistics.Detail != "containerd reads the CPU usage of all containers every 1m0s") {
			t.Errorf("runtime statistics: got %+v", statistics)
		}
		if it := items["image layers"]; it.Essential || !strings.Contains(it.Detail, " unpacked layers use ") {
			t.Errorf("image layers: got %+v", it)
		}
		if it := items["OCI runtime"]; it.Essential || !strings.Contains(it.Detail, "runc, ") ||
			!strings.Contains(it.Detail, " per call") {
			t.Errorf("OCI runtime: got %+v", it)
		}
	})
}
