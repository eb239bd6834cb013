package storage

import (
	"context"
	"log/slog"
	"sync/atomic"

	"go.uber.org/zap/zapcore"
)

// zapCore writes etcd's log to slog: warnings and errors, and the rest at debug level.
type zapCore struct {
	log       *slog.Logger
	debugOnly *atomic.Bool
	fatal     *fatalHook
}

func (c zapCore) level(l zapcore.Level) slog.Level {
	switch {
	case c.debugOnly.Load():
		return slog.LevelDebug
	case l >= zapcore.ErrorLevel:
		return slog.LevelError
	case l == zapcore.WarnLevel:
		return slog.LevelWarn
	}
	return slog.LevelDebug
}

// Enabled reports whether messages of a level are logged. Errors always pass, because the last one
// may be the cause of a failure.
func (c zapCore) Enabled(l zapcore.Level) bool {
	return l >= zapcore.ErrorLevel || c.log.Enabled(context.Background(), c.level(l))
}

// With returns a core that adds fields to every message.
func (c zapCore) With(fields []zapcore.Field) zapcore.Core {
	return zapCore{c.log.With(slogArgs(fields)...), c.debugOnly, c.fatal}
}

// Check adds the core if the message is logged.
func (c zapCore) Check(e zapcore.Entry, checked *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	if c.Enabled(e.Level) {
		return checked.AddCore(e, c)
	}
	return checked
}

// Write logs a message.
func (c zapCore) Write(e zapcore.Entry, fields []zapcore.Field) error {
	if e.Level >= zapcore.ErrorLevel {
		c.fatal.record(e, fields)
	}
	args := append([]any{"message", e.Message}, slogArgs(fields)...)
	c.log.Log(context.Background(), c.level(e.Level), "etcd message", args...)
	return nil
}

// Sync does nothing: slog does not buffer.
func (c zapCore) Sync() error { return nil }

func slogArgs(fields []zapcore.Field) []any {
	encoder := zapcore.NewMapObjectEncoder()
	for _, f := range fields {
		f.AddTo(encoder)
	}
	out := make([]any, 0, len(encoder.Fields))
	for k, v := range encoder.Fields {
		out = append(out, slog.Any(k, v))
	}
	return out
}
