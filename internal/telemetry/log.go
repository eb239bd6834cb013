package telemetry

import (
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"strconv"
	"strings"
	"syscall"

	send "github.com/coreos/go-systemd/v22/journal"
	"golang.org/x/term"
)

// LogOptions configures NewLog.
type LogOptions struct {
	Out       io.Writer // default os.Stderr
	Format    string    // text, json, or empty: text
	Verbosity int       // like --v: 0 to 2 state changes, 4 and more debug, 6 every call
	// Level changes the minimum level of the logger later; may be nil. NewLog sets it by Verbosity.
	Level *slog.LevelVar
}

// LevelTrace is the level of individual calls, enabled by --v=6.
const LevelTrace = slog.LevelDebug - 4

// Level returns the minimum level of a verbosity, like the kubelet's --v.
func Level(verbosity int) slog.Level {
	switch {
	case verbosity >= 6:
		return LevelTrace
	case verbosity >= 4:
		return slog.LevelDebug
	}
	return slog.LevelInfo
}

// NewLog returns the agent's logger. On a terminal, lines start with the time. Under systemd, the
// journal adds it, and the pod, the container and other attributes become fields: journalctl
// BERTH_POD=default/web. JSON always has all attributes.
func NewLog(o LogOptions) (*slog.Logger, error) {
	if o.Out == nil {
		o.Out = os.Stderr
	}
	level := o.Level
	if level == nil {
		level = &slog.LevelVar{}
	}
	level.Set(Level(o.Verbosity))
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

// forEyes shortens the time for terminals.
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

// toJournal reports whether f is the stream that systemd connected to the journal, which is
// identified by device and inode.
func toJournal(f *os.File) bool {
	dev, ino, ok := strings.Cut(os.Getenv("JOURNAL_STREAM"), ":")
	if !ok {
		return false
	}
	st, err := f.Stat()
	return err == nil && sameFile(st, dev, ino)
}

// sameFile reports whether st has that device and inode, in decimal.
func sameFile(st fs.FileInfo, dev, ino string) bool {
	sys, ok := st.Sys().(*syscall.Stat_t)
	return ok && strconv.FormatUint(sys.Dev, 10) == dev && strconv.FormatUint(sys.Ino, 10) == ino
}
