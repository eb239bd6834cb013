package main

import (
	"context"
	"log/slog"
	"os"

	"k8s.io/klog/v2"
)

// newLog writes to standard error, and makes the libraries write there too: what
// they call information is for debugging here.
func newLog(debug bool) *slog.Logger {
	level := slog.LevelInfo
	if debug {
		level = slog.LevelDebug
	}
	text := slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: level})
	klog.SetSlogLogger(slog.New(lowered{text}))
	return slog.New(text)
}

// lowered writes information as debugging.
type lowered struct{ slog.Handler }

func lower(l slog.Level) slog.Level {
	if l == slog.LevelInfo {
		return slog.LevelDebug
	}
	return l
}

// Enabled tells whether a line is written.
func (h lowered) Enabled(ctx context.Context, l slog.Level) bool {
	return h.Handler.Enabled(ctx, lower(l))
}

// Handle writes a line.
func (h lowered) Handle(ctx context.Context, r slog.Record) error {
	r.Level = lower(r.Level)
	return h.Handler.Handle(ctx, r)
}

// WithAttrs adds attributes to every further line.
func (h lowered) WithAttrs(attrs []slog.Attr) slog.Handler {
	return lowered{h.Handler.WithAttrs(attrs)}
}

// WithGroup puts further attributes in a group.
func (h lowered) WithGroup(name string) slog.Handler { return lowered{h.Handler.WithGroup(name)} }
