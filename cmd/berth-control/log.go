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
	klog.SetSlogLogger(slog.New(demotedHandler{text}))
	return slog.New(text)
}

// demotedHandler writes information as debugging.
type demotedHandler struct{ slog.Handler }

func demote(l slog.Level) slog.Level {
	if l == slog.LevelInfo {
		return slog.LevelDebug
	}
	return l
}

// Enabled tells whether a line is written.
func (h demotedHandler) Enabled(ctx context.Context, l slog.Level) bool {
	return h.Handler.Enabled(ctx, demote(l))
}

// Handle writes a line.
func (h demotedHandler) Handle(ctx context.Context, r slog.Record) error {
	r.Level = demote(r.Level)
	return h.Handler.Handle(ctx, r)
}

// WithAttrs adds attributes to every further line.
func (h demotedHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return demotedHandler{h.Handler.WithAttrs(attrs)}
}

// WithGroup puts further attributes in a group.
func (h demotedHandler) WithGroup(name string) slog.Handler {
	return demotedHandler{h.Handler.WithGroup(name)}
}
