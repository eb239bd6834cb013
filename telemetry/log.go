package telemetry

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strconv"
	"strings"

	"golang.org/x/term"
)

// LogOptions is what NewLog needs.
type LogOptions struct {
	Out       io.Writer // default os.Stderr
	Format    string    // text, json, or empty: text
	Verbosity int       // as --v: 0 to 2 tell state changes, 4 and more debug, 6 every call
}

// LevelTrace is for every single call; --v=6 shows it.
const LevelTrace = slog.LevelDebug - 4

// Level returns the least level told at a verbosity as the kubelet's --v has it.
func Level(verbosity int) slog.Level {
	switch {
	case verbosity >= 6:
		return LevelTrace
	case verbosity >= 4:
		return slog.LevelDebug
	}
	return slog.LevelInfo
}

// NewLog returns the agent's logger. On a terminal lines begin with the time.
// Elsewhere, where the journal adds that, they begin with the priority in the
// form that journald takes, <3> to <7>. JSON has all attributes always.
func NewLog(o LogOptions) (*slog.Logger, error) {
	if o.Out == nil {
		o.Out = os.Stderr
	}
	level := Level(o.Verbosity)
	switch o.Format {
	case "json":
		return slog.New(slog.NewJSONHandler(o.Out, &slog.HandlerOptions{Level: level, ReplaceAttr: levelNames})), nil
	case "", "text":
	default:
		return nil, fmt.Errorf("log format %q: must be text or json", o.Format)
	}
	f, ok := o.Out.(*os.File)
	switch {
	case ok && term.IsTerminal(int(f.Fd())):
		return slog.New(slog.NewTextHandler(o.Out, &slog.HandlerOptions{Level: level, ReplaceAttr: forEyes})), nil
	case ok && toJournal(f):
		return slog.New(newJournal(o.Out, level)), nil
	}
	return slog.New(slog.NewTextHandler(o.Out, &slog.HandlerOptions{Level: level, ReplaceAttr: levelNames})), nil
}

// forEyes shortens the time to what one looks at.
func forEyes(groups []string, a slog.Attr) slog.Attr {
	if len(groups) == 0 && a.Key == slog.TimeKey {
		return slog.String(slog.TimeKey, a.Value.Time().Format("15:04:05.000"))
	}
	return levelNames(groups, a)
}

func levelNames(groups []string, a slog.Attr) slog.Attr {
	if len(groups) == 0 && a.Key == slog.LevelKey && a.Value.Any() == LevelTrace {
		return slog.String(slog.LevelKey, "TRACE")
	}
	return a
}

// toJournal reports whether f is the stream that systemd connected to the
// journal, which it names by device and inode.
func toJournal(f *os.File) bool {
	dev, ino, ok := strings.Cut(os.Getenv("JOURNAL_STREAM"), ":")
	if !ok {
		return false
	}
	st, err := f.Stat()
	return err == nil && sameFile(st, dev, ino)
}

// journal puts the priority in front of each line.
type journal struct {
	byLevel map[slog.Level]slog.Handler
	level   slog.Level
}

// priorities of syslog(3) for the levels in use.
var priorities = map[slog.Level]int{
	slog.LevelError: 3, slog.LevelWarn: 4, slog.LevelInfo: 6, slog.LevelDebug: 7, LevelTrace: 7,
}

func newJournal(out io.Writer, level slog.Level) slog.Handler {
	j := journal{byLevel: map[slog.Level]slog.Handler{}, level: level}
	for l, p := range priorities {
		j.byLevel[l] = slog.NewTextHandler(prefixed{out, "<" + strconv.Itoa(p) + ">"},
			&slog.HandlerOptions{Level: level, ReplaceAttr: forJournal})
	}
	return j
}

// forJournal leaves out what the journal keeps itself.
func forJournal(groups []string, a slog.Attr) slog.Attr {
	if len(groups) == 0 && (a.Key == slog.TimeKey || a.Key == slog.LevelKey) {
		return slog.Attr{}
	}
	return a
}

func (j journal) Enabled(_ context.Context, l slog.Level) bool { return l >= j.level }

func (j journal) Handle(ctx context.Context, r slog.Record) error {
	return j.byLevel[bucket(r.Level)].Handle(ctx, r)
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
	return j.each(func(h slog.Handler) slog.Handler { return h.WithAttrs(attrs) })
}

func (j journal) WithGroup(name string) slog.Handler {
	return j.each(func(h slog.Handler) slog.Handler { return h.WithGroup(name) })
}

func (j journal) each(f func(slog.Handler) slog.Handler) slog.Handler {
	out := journal{byLevel: make(map[slog.Level]slog.Handler, len(j.byLevel)), level: j.level}
	for l, h := range j.byLevel {
		out.byLevel[l] = f(h)
	}
	return out
}

// prefixed writes each line with a prefix in one call, so that lines stay whole.
type prefixed struct {
	out    io.Writer
	prefix string
}

func (p prefixed) Write(b []byte) (int, error) {
	n, err := p.out.Write(append([]byte(p.prefix), b...))
	return max(n-len(p.prefix), 0), err
}
