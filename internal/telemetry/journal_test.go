package telemetry

import (
	"bytes"
	"errors"
	"log/slog"
	"maps"
	"sync"
	"testing"

	send "github.com/coreos/go-systemd/v22/journal"
)

// sent is a received journal entry.
type sent struct {
	message  string
	priority send.Priority
	fields   map[string]string
}

// recorder is a journal that returns err.
type recorder struct {
	mu  sync.Mutex
	got []sent
	err error
}

func (r *recorder) send(message string, p send.Priority, fields map[string]string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	fields = maps.Clone(fields)
	delete(fields, "SYSLOG_IDENTIFIER")
	r.got = append(r.got, sent{message, p, fields})
	return r.err
}

func TestJournalFields(t *testing.T) {
	var r recorder
	log := slog.New(newJournal(&bytes.Buffer{}, slog.LevelInfo, r.send))
	pod := log.With("pod", "default/web", "podUID", "u-1")
	pod.Info("Started container c", "reason", "Started", "target", "c", "took", 3)
	pod.Warn("careful\nnow")
	log.Error("bad")
	log.Debug("not logged")
	pod.WithGroup("g").Info("within", "reason", "not a field")
	want := []sent{
		{`msg="Started container c" pod=default/web podUID=u-1 reason=Started target=c took=3`, send.PriInfo,
			map[string]string{
				"BERTH_POD":     "default/web",
				"BERTH_POD_UID": "u-1",
				"BERTH_REASON":  "Started",
				"BERTH_TARGET":  "c",
				"BERTH_ON":      "c",
			}},
		{
			`msg="careful\nnow" pod=default/web podUID=u-1`,
			send.PriWarning,
			map[string]string{"BERTH_POD": "default/web", "BERTH_POD_UID": "u-1"},
		},
		{"msg=bad", send.PriErr, map[string]string{}},
		{
			`msg=within pod=default/web podUID=u-1 g.reason="not a field"`,
			send.PriInfo,
			map[string]string{"BERTH_POD": "default/web", "BERTH_POD_UID": "u-1"},
		},
	}
	if len(r.got) != len(want) {
		t.Fatalf("got %d entries: %v", len(r.got), r.got)
	}
	for i, w := range want {
		if g := r.got[i]; g.message != w.message || g.priority != w.priority || !maps.Equal(g.fields, w.fields) {
			t.Errorf("entry %d:\ngot  %+v\nwant %+v", i, g, w)
		}
	}
}

func TestJournalFallback(t *testing.T) {
	var out bytes.Buffer
	r := recorder{err: errors.New("no journald")}
	log := slog.New(newJournal(&out, slog.LevelInfo, r.send)).With("node", "n1").WithGroup("g")
	log.Debug("not logged")
	log.Info("hello", "a", 1)
	log.Warn("careful\nnow")
	log.Error("bad")
	want := "<6>msg=hello node=n1 g.a=1\n<4>msg=\"careful\\nnow\" node=n1\n<3>msg=bad node=n1\n"
	if out.String() != want {
		t.Errorf("got  %q\nwant %q", out.String(), want)
	}
}

// TestConcurrentJournalEntries: each entry has the fields of its own record.
func TestConcurrentJournalEntries(t *testing.T) {
	var r recorder
	log := slog.New(newJournal(&bytes.Buffer{}, slog.LevelInfo, r.send))
	var wg sync.WaitGroup
	for _, name := range []string{"a", "b", "c", "d"} {
		wg.Go(func() {
			pod := log.With("pod", name)
			for range 200 {
				pod.Info("entry written", "writer", name)
			}
		})
	}
	wg.Wait()
	for _, e := range r.got {
		if pod := e.fields["BERTH_POD"]; e.message != `msg="entry written" pod=`+pod+" writer="+pod {
			t.Fatalf("entry %q: got pod %q", e.message, pod)
		}
	}
	if len(r.got) != 800 {
		t.Errorf("got %d entries", len(r.got))
	}
}
