package plan

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
)

var rewrite = flag.Bool("rewrite", false, "rewrite testdata/*.txt")

// transcript is the life of a pod. After each step, all syncs until the pod is idle are recorded.
type transcript struct {
	name  string
	walk  *driver
	steps []step
}

type step struct {
	what string
	do   func(*driver)
}

// noChange is a step in which only the planned actions happen.
func noChange(*driver) {}

func transcripts() []transcript {
	chain := []func(*corev1.Pod){inits(con("one"), sidecar("side")), mains(con("app", mounts("conf"))),
		configMapVolume("conf", "cm")}
	toTime := func(w *driver) { w.in.Now = w.last.Wake }
	cm := func(w *driver) *driver {
		return w.input(func(in *Input) { in.Refs[Ref{ConfigMap, "cm"}] = Version{Version: "1"} })
	}
	pullFails := func(w *driver) {
		w.begin().ends("pull/app", &Error{Kind: Denied, Reason: "ErrImagePull", Err: errors.New("registry says no")})
	}
	return []transcript{
		{"simple-web-pod", fresh(),
			[]step{{"the pod is admitted", noChange}, {"an hour passes", func(w *driver) { w.after(time.Hour) }}}},
		{"init-sidecar-main", cm(fresh(chain...)), []step{
			{"the pod is admitted", noChange},
			{"the ConfigMap changes", func(w *driver) {
				w.in.Refs = map[Ref]Version{{ConfigMap, "cm"}: {Version: "2"}}
			}},
			{"the sidecar crashes", func(w *driver) { w.after(time.Minute).exit("side", 1) }},
			{"the pod is deleted", func(w *driver) { w.deleted(30 * time.Second) }},
		}},
		{"crash-loop", up(), []step{
			{"it crashes", func(w *driver) { w.exit("app", 1) }},
			{"it crashes again", func(w *driver) { w.after(time.Second).exit("app", 1) }},
			{"the back-off ends", toTime},
			{"it crashes a third time", func(w *driver) { w.after(time.Second).exit("app", 2) }},
			{"the back-off ends", toTime},
			{"it runs for ten minutes and crashes", func(w *driver) { w.after(10*time.Minute).exit("app", 1) }},
		}},
		{"pull-fails-and-recovers", fresh(mains(con("app",
			image("far")))).begin().succeed("make/dirs").succeed("make/cgroup").begin().succeed("run/sandbox"), []step{
			{"the pull fails", pullFails},
			{"two seconds later", toTime},
			{"the back-off ends, the pull fails again", func(w *driver) { toTime(w); pullFails(w) }},
			{"a moment later", toTime},
			{"the back-off ends, the registry responds", toTime},
		}},
		{"image-change", up(never, mains(con("app"), con("b"))), []step{
			{"the image of app is edited", func(w *driver) { w.edit(mains(con("app", image("new")), con("b"))) }},
		}},
		{"eviction-during-a-pull", fresh(mains(con("app", image("far"))),
			emptyDir("v")).begin().succeed("make/dirs").succeed("make/cgroup").begin(), []step{
			{"the node runs out of memory", func(w *driver) { w.terminate("Evicted", 0) }},
			{"the pod is deleted", func(w *driver) { w.deleted(0) }},
		}},
		{"node-reboot", up(inits(con("one"), sidecar("side"))), []step{
			{"the node has rebooted", func(w *driver) { w.after(time.Minute).rebooted() }},
		}},
		{"orphan", up(inits(sidecar("side"))), []step{
			{"the pod is orphaned", func(w *driver) {
				w.terminate("Orphaned", 30*time.Second).in.Termination.RemovePod = true
			}},
		}},
	}
}

// TestTranscripts compares transcripts with testdata. After go test -rewrite the diff shows the
// effect of a change.
func TestTranscripts(t *testing.T) {
	t.Parallel()
	for _, s := range transcripts() {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			path := filepath.Join("testdata", s.name+".txt")
			got := s.render()
			if *rewrite {
				if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(string(want), got); diff != "" {
				t.Errorf("%s (run go test -rewrite if the change is intended):\n%s", path, diff)
			}
		})
	}
}

func (s transcript) render() string {
	var b strings.Builder
	w := s.walk
	for _, st := range s.steps {
		st.do(w)
		fmt.Fprintf(&b, "# +%s %s\n", w.in.Now.Sub(t0), st.what)
		for range 50 {
			before := w.text()
			if w.begin(); w.text() != before {
				b.WriteString(w.text())
			}
			if len(w.in.InProgress) == 0 {
				break
			}
			b.WriteString("\n")
			w.finish()
		}
		b.WriteString("\n")
	}
	return b.String()
}
