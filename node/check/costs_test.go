package check

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"berth/cri"
	"berth/nodeapi"
)

func TestCheckReportsCosts(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		costs
		want []string // "ok" or "warn", name and detail
	}{
		"nothing is known": {},
		"containerd by default": {
			costs{config: cri.Costs{StatsPeriod: time.Second}, pods: 20}, []string{
				"warn runtime statistics: containerd reads the CPU usage of all containers every 1s: about 2.0 % of " +
					"a core with the 20 pods of this node, 5 % with 50 pods",
			}},
		"long period": {costs{config: cri.Costs{StatsPeriod: time.Minute}, pods: 20}, []string{
			"ok runtime statistics: containerd reads the CPU usage of all containers every 1m0s",
		}},
		"few layers": {costs{layers: cri.UnpackedLayers{Layers: 3, Bytes: 5 << 20}}, []string{
			"ok image layers: 3 unpacked layers use 5 MiB in compressed form",
		}},
		"many layers": {costs{layers: cri.UnpackedLayers{Layers: 30, Bytes: 2 << 30}}, []string{
			"warn image layers: 30 unpacked layers use 2048 MiB in compressed form",
		}},
		"only runc": {costs{ociRuntime: programCost{"/sbin/runc", 9 * time.Millisecond}}, []string{
			"ok OCI runtime: /sbin/runc, 9ms per call",
		}},
		"faster crun": {
			costs{
				ociRuntime: programCost{"/sbin/runc", 9 * time.Millisecond},
				crun:       programCost{"/bin/crun", 1500 * time.Microsecond},
			}, []string{
				"warn OCI runtime: /sbin/runc, 9ms per call; /bin/crun takes 1.5ms per call, which saves about " +
					"22.5ms of CPU time per container",
			}},
		"slower crun": {
			costs{
				ociRuntime: programCost{"/sbin/runc", time.Millisecond}, crun: programCost{"/bin/crun", time.Second},
			}, []string{"ok OCI runtime: /sbin/runc, 1ms per call"}},
	} {
		var r nodeapi.CheckReport
		c.report(Adder(&r))
		var got []string
		for _, it := range r.Items {
			state := "warn"
			if it.OK {
				state = "ok"
			}
			if it.OK != (it.Remedy == "") || it.Essential {
				t.Errorf("%s: got %+v", name, it)
			}
			got = append(got, state+" "+it.Name+": "+it.Detail)
		}
		if strings.Join(got, "\n") != strings.Join(c.want, "\n") {
			t.Errorf("%s: got %q, want %q", name, got, c.want)
		}
	}
}

func TestMeasureProgram(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for name, script := range map[string]string{"good": "exit 0", "bad": "exit 1"} {
		text := "#!/bin/sh\necho \"$@\" >>" + dir + "/" + name + ".calls\n" + script + "\n"
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	good := filepath.Join(dir, "good")
	if got := measureProgram(t.Context(), good); got.path != good {
		t.Errorf("got %+v", got)
	}
	calls, err := os.ReadFile(good + ".calls")
	if want := strings.Repeat("--version\n", programCalls); err != nil || string(calls) != want {
		t.Errorf("got calls %q, %v", calls, err)
	}
	for _, name := range []string{filepath.Join(dir, "bad"), filepath.Join(dir, "none")} {
		if got := measureProgram(t.Context(), name); got != (programCost{}) {
			t.Errorf("%s: got %+v", name, got)
		}
	}
}
