package podlogs

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"berth/agent/plan"
	"berth/agent/status"
	"berth/cri/crilog"
)

// put adds a pod with these containers to the cache.
func put(c *status.Cache, name string, syncs int64, containers ...plan.Container) {
	pod := &corev1.Pod{}
	pod.Name, pod.UID = name, types.UID(name)
	c.Put(&status.Snapshot{Pod: pod, Syncs: syncs, Observed: plan.Observed{Containers: containers}})
}

func TestRunningLogsAreRotated(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	var reopened string
	l := &Logs{
		Statuses: status.New(), Log: slog.New(slog.NewTextHandler(&log, nil)),
		Reopen: func(_ context.Context, id string) error { reopened = id; return nil },
	}
	put(l.Statuses, "web", 1,
		plan.Container{ID: "1", Name: "a", LogPath: "/a.log", State: plan.Running},
		plan.Container{ID: "2", Name: "b", LogPath: "/b.log", State: plan.Exited},
		plan.Container{ID: "3", Name: "c", State: plan.Running})
	got := l.Running()
	if len(got) != 1 || got[0].Path != "/a.log" {
		t.Fatalf("got %+v", got)
	}
	if err := got[0].Reopen(); err != nil || reopened != "1" {
		t.Errorf("reopened %q, %v", reopened, err)
	}
	got[0].OnError(errors.New("no space"))
	put(l.Statuses, "web", 2)
	got[0].OnError(errors.New("no such container")) // it has terminated meanwhile
	if strings.Count(log.String(), "\n") != 1 || !strings.Contains(log.String(), "no space") {
		t.Errorf("got log\n%s", &log)
	}
}

func TestOwnersOfLogs(t *testing.T) {
	t.Parallel()
	ready := false
	l := &Logs{
		Statuses: status.New(), Ready: func() bool { return ready },
		SandboxUIDs: func(context.Context) (map[string]bool, error) { return map[string]bool{"orphan": true}, nil },
		Owns:        func(uid types.UID) bool { return uid != "foreign" },
	}
	put(l.Statuses, "foreign", 1)
	put(l.Statuses, "new", 0)
	put(l.Statuses, "web", 1, plan.Container{ID: "1", LogPath: "/a.log"})
	if _, err := l.Owners(t.Context()); err == nil {
		t.Error("got owners before all pods were known")
	}
	ready = true
	o, err := l.Owners(t.Context())
	if err != nil || !o.Pods["orphan"] || !o.Pods["new"] || !o.Pods["web"] || !o.Logs["web"]["/a.log"] {
		t.Errorf("got %+v, %v", o, err)
	}
	if _, known := o.Logs["new"]; known {
		t.Error("got logs of a pod that was not observed")
	}
	if _, known := o.Logs["foreign"]; known || !o.Pods["foreign"] || o.Owns("foreign") || !o.Owns("web") {
		t.Error("the logs of a foreign pod are not kept")
	}
}

// TestWriteFollowsLaterRuns follows the log of a container that restarts once.
func TestWriteFollowsLaterRuns(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	paths := []string{filepath.Join(dir, "0.log"), filepath.Join(dir, "1.log")}
	for i, path := range paths {
		line := "2026-01-02T03:04:05.000000000Z stdout F run " + string(rune('0'+i)) + "\n"
		if err := os.WriteFile(path, []byte(line), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	first := plan.Container{ID: "1", Name: "a", LogPath: paths[0], State: plan.Exited}
	for _, tt := range []struct {
		laterRuns bool
		want      string
	}{{false, "run 0\n"}, {true, "run 0\nrun 1\n"}} {
		l := &Logs{Statuses: status.New()}
		put(l.Statuses, "web", 1, plan.Container{
			ID: "2", Name: "a", LogPath: paths[1], State: plan.Exited, Attempt: 1,
		}, first)
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		var out bytes.Buffer
		err := l.Write(ctx, "web", first, crilog.Options{Follow: true, Stdout: &out}, tt.laterRuns)
		cancel()
		if err != nil || out.String() != tt.want {
			t.Errorf("later runs %t: got %q, %v, want %q", tt.laterRuns, out.String(), err, tt.want)
		}
	}
}

func TestRemoveRotatedKeepsCurrentLog(t *testing.T) {
	t.Parallel()
	current := filepath.Join(t.TempDir(), "0.log")
	rotated := current + ".20260102-030405"
	for _, path := range []string{current, rotated} {
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	l := &Logs{Statuses: status.New()}
	put(l.Statuses, "web", 1, plan.Container{ID: "1", LogPath: current}, plan.Container{ID: "2"})
	if err := l.RemoveRotated(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(current); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(rotated); err == nil {
		t.Error("the rotated log was not removed")
	}
}
