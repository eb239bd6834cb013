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
	killBound = 10 * time.Second // for processes to die: one may hang in the kernel
	killWait  = 2 * time.Millisecond
	killPause = 100 * time.Millisecond
)

// sweep kills what is in cgroups and removes them, deepest first. A process
// that forks faster than it is found is met again on the next round.
func sweep(ctx context.Context, groups []group) error {
	ctx, cancel := context.WithTimeout(ctx, killBound)
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

// dirs lists the cgroup and those below it, each after what is below it.
func (g group) dirs() ([]string, error) {
	var out []string
	err := filepath.WalkDir(g.dir, func(path string, entry fs.DirEntry, err error) error {
		switch {
		case gone(err):
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
		return fmt.Errorf("%s: holds the agent itself, so it is left alone", g.dir)
	}
	if g.unified && len(procs) > 0 && write(filepath.Join(g.dir, "cgroup.kill"), "1") == nil {
		return nil
	}
	for pid := range procs {
		_ = unix.Kill(pid, unix.SIGKILL) // gone already, or met again
	}
	if !g.unified {
		for _, dir := range slices.Backward(dirs) { // a frozen process does not die
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
		// The files of a cgroup go with its directory, so that only an rmdir works.
		if err := unix.Rmdir(dir); err != nil && !gone(err) {
			busy = errors.Join(busy, fmt.Errorf("remove %s: %w", dir, err))
		}
	}
	return busy
}
