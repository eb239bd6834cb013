package storage

import (
	"errors"
	"runtime"
	"strings"
	"sync"

	"go.uber.org/zap/zapcore"
)

// fatalHook records fatal errors of etcd. etcd would exit the process. Here only the failing
// goroutine ends, and the member counts as failed.
type fatalHook struct {
	once   sync.Once
	failed chan error // receives at most one error

	mu     sync.Mutex
	reason string // last logged error
}

// record stores an error message with its cause.
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

// OnWrite is called after etcd logged a fatal error. It never returns: etcd must not continue after
// a failed write.
func (w *fatalHook) OnWrite(*zapcore.CheckedEntry, []zapcore.Field) {
	w.once.Do(func() { w.failed <- w.lastError() })
	runtime.Goexit()
}
