package telemetry

import (
	"context"
	"io"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"

	send "github.com/coreos/go-systemd/v22/journal"
)

// journalFields maps attributes to journal fields, by which the journal can be filtered, for
// example by pod or by reason.
var journalFields = map[string]string{
	"pod": "BERTH_POD", "podUID": "BERTH_POD_UID", "containerName": "BERTH_CONTAINER", "reason": "BERTH_REASON",
	"action": "BERTH_ACTION", "target": "BERTH_TARGET",
	// Previous names of attributes.
	"uid": "BERTH_POD_UID", "container": "BERTH_CONTAINER", "op": "BERTH_ACTION",
}

// deprecatedFields maps journal fields to their previous names, which are sent as well for one
// release.
var deprecatedFields = map[string]string{"BERTH_TARGET": "BERTH_ON"}

// priorities are the syslog(3) priorities of the levels.
var priorities = map[slog.Level]send.Priority{
	slog.LevelError: send.PriErr, slog.LevelWarn: send.PriWarning,
	slog.LevelInfo: send.PriInfo, slog.LevelDebug: send.PriDebug,
}

// journal writes each record as one journal entry. The text is the message, and the attributes in
// journalFields are additional fields.
type journal struct {
	to     *entries
	text   slog.Handler // writes to to
	fields map[string]string
	groups bool // attributes are in a group and do not become fields
	level  slog.Leveler
}

// entries writes the output of a slog.TextHandler as journal entries.
type entries struct {
	send func(message string, p send.Priority, fields map[string]string) error
	out  io.Writer // the stream to the journal, as a fallback

	mu       sync.Mutex // held while a record is written
	priority send.Priority
	fields   map[string]string
}

func newJournal(
	out io.Writer,
	level slog.Leveler,
	send func(string, send.Priority, map[string]string) error,
) slog.Handler {
	to := &entries{send: send, out: out}
	return journal{
		to: to, text: slog.NewTextHandler(to, &slog.HandlerOptions{Level: level, ReplaceAttr: forJournal}),
		level:  level,
		fields: map[string]string{"SYSLOG_IDENTIFIER": filepath.Base(os.Args[0])},
	}
}

// forJournal drops attributes that the journal records itself.
func forJournal(groups []string, a slog.Attr) slog.Attr {
	if len(groups) == 0 && (a.Key == slog.TimeKey || a.Key == slog.LevelKey) {
		return slog.Attr{}
	}
	return a
}

func (j journal) Enabled(_ context.Context, l slog.Level) bool { return l >= j.level.Level() }

func (j journal) Handle(ctx context.Context, r slog.Record) error {
	fields := j.fields
	if !j.groups {
		r.Attrs(func(a slog.Attr) bool {
			fields = withField(fields, a)
			return true
		})
	}
	j.to.mu.Lock()
	defer j.to.mu.Unlock()
	j.to.priority, j.to.fields = priorities[bucket(r.Level)], fields
	return j.text.Handle(ctx, r)
}

func bucket(l slog.Level) slog.Level {
	switch {
	case l >= slog.LevelError:
		return slog.LevelError
	case l >= slog.LevelWarn:
		return slog.LevelWarn
	case l >= slog.LevelInfo:
		return slog.LevelInfo
	}
	return slog.LevelDebug
}

func (j journal) WithAttrs(attrs []slog.Attr) slog.Handler {
	j.text = j.text.WithAttrs(attrs)
	if !j.groups {
		for _, a := range attrs {
			j.fields = withField(j.fields, a)
		}
	}
	return j
}

func (j journal) WithGroup(name string) slog.Handler {
	j.text, j.groups = j.text.WithGroup(name), true
	return j
}

// withField returns fields with that of the attribute, if it has one. It does not change fields.
func withField(fields map[string]string, a slog.Attr) map[string]string {
	name, ok := journalFields[a.Key]
	if !ok {
		return fields
	}
	fields = maps.Clone(fields)
	fields[name] = a.Value.Resolve().String()
	if old, renamed := deprecatedFields[name]; renamed {
		fields[old] = fields[name]
	}
	return fields
}

// Write sends one record. If journald is not available, the record is written to the stream, which
// systemd buffers, with its priority as a prefix.
func (e *entries) Write(line []byte) (int, error) {
	if e.send(strings.TrimSuffix(string(line), "\n"), e.priority, e.fields) == nil {
		return len(line), nil
	}
	prefix := "<" + strconv.Itoa(int(e.priority)) + ">"
	n, err := e.out.Write(append([]byte(prefix), line...))
	return max(n-len(prefix), 0), err
}
