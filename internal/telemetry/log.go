package telemetry

import (
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"

	send "github.com/coreos/go-systemd/v22/journal"
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
// Under systemd the journal adds that, and gets the pod, the container and the
// like as fields too: journalctl BERTH_POD=default/web. JSON has all attributes
// always.
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
		return slog.New(newJournal(o.Out, level, send.Send)), nil
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
