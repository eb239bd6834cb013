package storage

import (
	"context"
	"log/slog"
	"sync/atomic"

	"go.uber.org/zap/zapcore"
)

// zapCore writes etcd's log to ours: its warnings and errors, and the rest only
// when debugging.
type zapCore struct {
	log   *slog.Logger
	quiet *atomic.Bool
	fatal *fatalHook
}

func (c zapCore) level(l zapcore.Level) slog.Level {
	switch {
	case c.quiet.Load():
		return slog.LevelDebug
	case l >= zapcore.ErrorLevel:
		return slog.LevelError
	case l == zapcore.WarnLevel:
		return slog.LevelWarn
	}
	return slog.LevelDebug
}

// Enabled tells whether a line of this level is written; errors always pass,
// because the last one may be the last words.
func (c zapCore) Enabled(l zapcore.Level) bool {
	return l >= zapcore.ErrorLevel || c.log.Enabled(context.Background(), c.level(l))
}

// With adds fields to every further line.
func (c zapCore) With(fields []zapcore.Field) zapcore.Core {
	return zapCore{c.log.With(slogArgs(fields)...), c.quiet, c.fatal}
}

// Check asks whether to write a line.
func (c zapCore) Check(e zapcore.Entry, checked *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	if c.Enabled(e.Level) {
		return checked.AddCore(e, c)
	}
	return checked
}

// Write writes a line.
func (c zapCore) Write(e zapcore.Entry, fields []zapcore.Field) error {
	if e.Level >= zapcore.ErrorLevel {
		c.fatal.record(e, fields)
	}
	c.log.Log(context.Background(), c.level(e.Level), "store: "+e.Message, slogArgs(fields)...)
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
