package control_test

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"berth/control"
)

// bound is a generous timeout for a loaded machine.
const bound = 2 * time.Minute

// TestServerLeavesNoGoroutines starts, uses and stops a server twice. Goroutines that run after the
// second server but not after the first one leaked from a server. Goroutines that libraries start
// once per process exist after the first.
func TestServerLeavesNoGoroutines(t *testing.T) {
	useServer(t)
	runtime.GC()
	before := running()
	useServer(t)
	var more []string
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(bound); time.Now().Before(end); <-tick.C {
		if more = grown(before, running()); len(more) == 0 {
			return
		}
	}
	t.Errorf("goroutines left by the server:\n%s", strings.Join(more, "\n\n"))
}

// useServer runs a server with all controllers and an embedded store, writes, watches, leaves
// watches open, and stops it.
func useServer(t *testing.T) {
	t.Helper()
	c := control.Default()
	c.DataDir, c.Listen, c.UnsafeNoFsync = t.TempDir(), "127.0.0.1:0", true
	c.Log = slog.New(slog.DiscardHandler)
	server, err := control.New(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithTimeout(t.Context(), bound)
	defer stop()
	running, ended := context.WithCancel(context.WithoutCancel(ctx))
	left := make(chan error, 1)
	go func() { left <- server.Run(running) }() // end waits for it
	end := func() {
		ended()
		if err := <-left; err != nil {
			t.Errorf("server returned an error: %v", err)
		}
	}
	select {
	case <-server.Ready():
	case <-ctx.Done():
		end()
		t.Fatal("server not ready")
	}
	if err := work(ctx, server.Client); err != nil {
		t.Error(err)
	}
	end()
}

// work leaves ten watches open, which end with the server.
func work(ctx context.Context, client kubernetes.Interface) error {
	core := client.CoreV1()
	for range 5 {
		for _, namespace := range []string{"", metav1.NamespaceDefault} {
			w, err := core.ConfigMaps(namespace).Watch(ctx, metav1.ListOptions{AllowWatchBookmarks: true})
			if err != nil {
				return fmt.Errorf("watch: %w", err)
			}
			go func() { // ends with the server
				for range w.ResultChan() {
				}
			}()
		}
	}
	seen, err := core.ConfigMaps(metav1.NamespaceDefault).Watch(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("watch: %w", err)
	}
	defer seen.Stop()
	if _, err := core.ConfigMaps(metav1.NamespaceDefault).Create(ctx,
		&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "made"}}, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("create: %w", err)
	}
	for {
		select {
		case e, ok := <-seen.ResultChan():
			if !ok {
				return fmt.Errorf("watch closed")
			}
			if c, is := e.Object.(*corev1.ConfigMap); is && c.Name == "made" {
				return nil
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// running returns the stacks of all goroutines by creator.
func running() map[string][]string {
	text := make([]byte, 1<<20)
	for {
		n := runtime.Stack(text, true)
		if n < len(text) {
			text = text[:n]
			break
		}
		text = make([]byte, 2*len(text))
	}
	out := map[string][]string{}
	for stack := range strings.SplitSeq(string(text), "\n\n") {
		_, by, ok := strings.Cut(stack, "\ncreated by ")
		if !ok {
			continue // the main goroutine
		}
		by, _, _ = strings.Cut(by, "\n")
		by, _, _ = strings.Cut(by, " in goroutine ")
		out[by] = append(out[by], stack)
	}
	return out
}

// grown returns a stack of each creator that has more goroutines than before.
func grown(before, now map[string][]string) (out []string) {
	for _, by := range slices.Sorted(maps.Keys(now)) {
		if more := len(now[by]) - len(before[by]); more > 0 {
			out = append(out, fmt.Sprintf("%d more by %s, for example\n%s", more, by, now[by][0]))
		}
	}
	return out
}
