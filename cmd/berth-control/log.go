package main

import (
	"context"
	"log/slog"
	"os"

	"k8s.io/klog/v2"
)

// debugVerbosity is the verbosity from which debug messages are logged, as in berth and the kubelet.
const debugVerbosity = 4

// newLog returns a logger to standard error and redirects the logs of libraries to it.
// Informational messages of libraries are logged at debug level.
func newLog(verbosity int) *slog.Logger {
	level := slog.LevelInfo
	if verbosity >= debugVerbosity {
		level = slog.LevelDebug
	}
	text := slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: level})
	klog.SetSlogLogger(slog.New(demotedHandler{text}))
	return slog.New(text)
}

// demotedHandler demotes informational messages to debug level.
type demotedHandler struct{ slog.Handler }

func demote(l slog.Level) slog.Level {
	if l == slog.LevelInfo {
		return slog.LevelDebug
	}
	return l
}

// Enabled reports whether messages of a level are logged.
func (h demotedHandler) Enabled(ctx context.Context, l slog.Level) bool {
	return h.Handler.Enabled(ctx, demote(l))
}

// Handle logs a message.
func (h demotedHandler) Handle(ctx context.Context, r slog.Record) error {
	r.Level = demote(r.Level)
	return h.Handler.Handle(ctx, r)
}

// WithAttrs returns a handler that adds attributes to every message.
func (h demotedHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return demotedHandler{h.Handler.WithAttrs(attrs)}
}

// WithGroup returns a handler that puts further attributes into a group.
func (h demotedHandler) WithGroup(name string) slog.Handler {
	return demotedHandler{h.Handler.WithGroup(name)}
}
