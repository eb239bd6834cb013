package main

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestGroupLogsComponentsThatDoNotStop(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancelCause(t.Context())
		g := &group{stop: stop, running: map[string]bool{}}
		failed, release := errors.New("failed"), make(chan struct{})
		g.run("fails", func() error { return failed })
		g.run("stops", func() error { <-ctx.Done(); return nil })
		g.run("hangs", func() error { <-release; return nil })
		time.AfterFunc(stopReportInterval+time.Second, func() { close(release) })
		var log bytes.Buffer
		if err := g.wait(ctx, slog.New(slog.NewTextHandler(&log, nil))); !errors.Is(err, failed) {
			t.Errorf("got %v, want the error of the failed component", err)
		}
		if text := log.String(); strings.Count(text, `msg="components have not stopped yet" components=[hangs]`) != 1 {
			t.Errorf("got log\n%s", text)
		}
	})
}
