package storage

import (
	"errors"
	"runtime"
	"strings"
	"sync"

	"go.uber.org/zap/zapcore"
)

// fatalHook keeps why etcd cannot go on. Its own way is to end the process; here
// only the goroutine ends that must not go on, and the member counts as failed.
type fatalHook struct {
	once   sync.Once
	failed chan error // gets one error at most

	mu     sync.Mutex
	reason string // of the last error that was logged
}

// record remembers what went wrong, with its cause.
func (w *fatalHook) record(e zapcore.Entry, fields []zapcore.Field) {
	var text strings.Builder
	text.WriteString(e.Message)
	for _, f := range fields {
		if err, ok := f.Interface.(error); ok && f.Type == zapcore.ErrorType {
			text.WriteString(": " + err.Error())
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.reason = text.String()
}

func (w *fatalHook) lastError() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.reason == "" {
		return nil
	}
	return errors.New(w.reason)
}

// OnWrite is called after a line was logged that etcd does not survive. It never
// returns: what was not saved must not be taken for saved.
func (w *fatalHook) OnWrite(*zapcore.CheckedEntry, []zapcore.Field) {
	w.once.Do(func() { w.failed <- w.lastError() })
	runtime.Goexit()
}
