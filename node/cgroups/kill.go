package cgroups

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

const (
	killTimeout = 10 * time.Second // a process may hang in the kernel
	killWait    = 2 * time.Millisecond
	killPause   = 100 * time.Millisecond
)

// killAndRemove kills the processes in cgroups and removes them, deepest first. A process that
// forks meanwhile is killed in the next round.
func killAndRemove(ctx context.Context, groups []group) error {
	ctx, cancel := context.WithTimeout(ctx, killTimeout)
	defer cancel()
	wait := killWait
	for {
		var left []group
		var busy error
		for _, g := range groups {
			if err := g.kill(); err != nil {
				return err
			}
			if err := g.remove(); errors.Is(err, unix.EBUSY) {
				left, busy = append(left, g), err
			} else if err != nil {
				return err
			}
		}
		if len(left) == 0 {
			return nil
		}
		groups = left
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", busy, ctx.Err())
		case <-time.After(wait):
			wait = min(2*wait, killPause)
		}
	}
}

// group is a cgroup in one hierarchy.
type group struct {
	dir     string
	unified bool
}

// dirs lists the cgroup and its descendants, children first.
func (g group) dirs() ([]string, error) {
	var out []string
	err := filepath.WalkDir(g.dir, func(path string, entry fs.DirEntry, err error) error {
		switch {
		case isGone(err):
			return nil
		case err != nil:
			return err
		case entry.IsDir():
			out = append(out, path)
		}
		return nil
	})
	slices.Reverse(out)
	return out, err
}

func (g group) kill() error {
	dirs, err := g.dirs()
	if err != nil || len(dirs) == 0 {
		return err
	}
	procs := make(map[int]bool)
	for _, dir := range dirs {
		for _, text := range fields(filepath.Join(dir, "cgroup.procs")) {
			if pid, err := strconv.Atoi(text); err == nil && pid > 1 {
				procs[pid] = true
			}
		}
	}
	if procs[os.Getpid()] {
		return fmt.Errorf("%s: contains the agent itself; not killed", g.dir)
	}
	if g.unified && len(procs) > 0 && write(filepath.Join(g.dir, "cgroup.kill"), "1") == nil {
		return nil
	}
	for pid := range procs {
		_ = unix.Kill(pid, unix.SIGKILL) // already gone, or killed in the next round
	}
	if !g.unified {
		for _, dir := range slices.Backward(dirs) { // a frozen process ignores SIGKILL
			if state := filepath.Join(dir, "freezer.state"); exists(state) {
				_ = write(state, "THAWED")
			}
		}
	}
	return nil
}

func (g group) remove() error {
	dirs, err := g.dirs()
	if err != nil {
		return err
	}
	var busy error
	for _, dir := range dirs {
		// A cgroup is removed by rmdir only; its files cannot be deleted.
		if err := unix.Rmdir(dir); err != nil && !isGone(err) {
			busy = errors.Join(busy, fmt.Errorf("remove %s: %w", dir, err))
		}
	}
	return busy
}
