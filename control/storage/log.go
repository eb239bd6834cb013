package storage

import (
	"context"
	"log/slog"
	"sync/atomic"

	"go.uber.org/zap/zapcore"
)

// logged writes etcd's log to ours: its warnings and errors, and the rest only
// when debugging.
type logged struct {
	log   *slog.Logger
	quiet *atomic.Bool
	words *lastWords
}

func (c logged) level(l zapcore.Level) slog.Level {
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
func (c logged) Enabled(l zapcore.Level) bool {
	return l >= zapcore.ErrorLevel || c.log.Enabled(context.Background(), c.level(l))
}

// With adds fields to every further line.
func (c logged) With(fields []zapcore.Field) zapcore.Core {
	return logged{c.log.With(arguments(fields)...), c.quiet, c.words}
}

// Check asks whether to write a line.
func (c logged) Check(e zapcore.Entry, checked *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	if c.Enabled(e.Level) {
		return checked.AddCore(e, c)
	}
	return checked
}

// Write writes a line.
func (c logged) Write(e zapcore.Entry, fields []zapcore.Field) error {
	if e.Level >= zapcore.ErrorLevel {
		c.words.note(e, fields)
	}
	c.log.Log(context.Background(), c.level(e.Level), "store: "+e.Message, arguments(fields)...)
	return nil
}

// Sync does nothing: slog does not buffer.
func (c logged) Sync() error { return nil }

func arguments(fields []zapcore.Field) []any {
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
