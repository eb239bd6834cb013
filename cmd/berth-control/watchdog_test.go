package main

import (
	"context"
	"log/slog"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"berth/systemd"
)

// TestWatchdogNotifiesWhileServerIsLive runs a server that is live and then hangs, and reads the
// notification socket as systemd does.
func TestWatchdogNotifiesWhileServerIsLive(t *testing.T) {
	path := filepath.Join(t.TempDir(), "notify")
	socket, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = socket.Close() })
	t.Setenv("NOTIFY_SOCKET", path)
	t.Setenv("WATCHDOG_USEC", "40000")
	t.Setenv("WATCHDOG_PID", "")
	manager, err := systemd.ClaimNotifySocket()
	if err != nil {
		t.Fatal(err)
	}
	if err := socket.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	hear := func(word string) {
		t.Helper()
		buf := make([]byte, 4096)
		for {
			n, err := socket.Read(buf)
			if err != nil {
				t.Fatalf("no notification with %q: %v", word, err)
			}
			if strings.Contains(string(buf[:n]), word) {
				return
			}
		}
	}
	hang, hung := context.WithCancel(t.Context())
	ctx, cancel := context.WithCancel(t.Context())
	var watching sync.WaitGroup
	watching.Go(func() {
		runWatchdog(ctx, manager, func(ctx context.Context) error {
			if hang.Err() == nil {
				return nil
			}
			<-ctx.Done()
			return ctx.Err()
		}, slog.New(slog.DiscardHandler))
	})
	defer watching.Wait()
	defer cancel()
	hear("WATCHDOG=1")
	hear("WATCHDOG=1")
	hung()
	hear("STATUS=hung: the API made no progress for 80ms")
}
