package crilog

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// Owners says what of the logs has an owner.
type Owners struct {
	// Pods are the UIDs of pods that are there, of whatever owner: their folders
	// stay.
	Pods map[string]bool
	// Logs has, for the pods whose instances are all known, the logs of those
	// instances by UID and path. A pod that is not in it keeps all of its logs.
	Logs map[string]map[string]bool
}

// Collected counts what a round of the Collector has taken away.
type Collected struct {
	PodDirs int   // of pods that are no more
	Logs    int   // of containers that were removed, with their rotated files
	Links   int   // to logs that are no more
	Bytes   int64 // freed
}

// Collector takes away logs that are nobody's: folders of pods that are no more,
// logs of containers that were removed while their pod goes on, and links to
// what is gone.
type Collector struct {
	PodLogsDir  string        // of the pods' folders: /var/log/pods
	LinkDir     string        // of the links: /var/log/containers; empty: none
	Interval    time.Duration // between rounds
	MinAge      time.Duration // since the last change of what is taken away
	Owners      func(context.Context) (Owners, error)
	OnCollected func(Collected, error) // told after each round; nil: nobody is
	Now         func() time.Time
}

// Run collects, once per interval, until ctx ends.
func (c *Collector) Run(ctx context.Context) {
	tick := time.NewTicker(c.Interval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		g, err := c.RunOnce(ctx)
		if c.OnCollected != nil && ctx.Err() == nil {
			c.OnCollected(g, err)
		}
	}
}

// RunOnce collects once. What cannot be taken away does not keep the rest.
func (c *Collector) RunOnce(ctx context.Context) (g Collected, err error) {
	kept, err := c.Owners(ctx)
	if err != nil {
		return g, fmt.Errorf("collect logs: %w", err)
	}
	entries, err := os.ReadDir(c.PodLogsDir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return g, fmt.Errorf("collect logs: %w", err)
	}
	var errs []error
	for _, e := range entries {
		if ctx.Err() != nil {
			return g, ctx.Err()
		}
		parts := strings.Split(e.Name(), "_") // namespace, pod and UID have no underscore
		if !e.IsDir() || len(parts) != 3 || parts[2] == "" {
			continue
		}
		dir, uid := filepath.Join(c.PodLogsDir, e.Name()), parts[2]
		switch logs, known := kept.Logs[uid]; {
		case known:
			errs = append(errs, c.single(dir, logs, &g))
		case !kept.Pods[uid]:
			errs = append(errs, c.folder(dir, &g))
		}
	}
	errs = append(errs, c.links(&g))
	return g, errors.Join(errs...)
}

// folder takes the folder of a pod away.
func (c *Collector) folder(dir string, g *Collected) error {
	var size int64
	var newest time.Time
	err := filepath.WalkDir(dir, func(_ string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		st, err := e.Info()
		if err != nil {
			return err
		}
		if st.Mode().IsRegular() {
			size += st.Size()
		}
		if st.ModTime().After(newest) {
			newest = st.ModTime()
		}
		return nil
	})
	if err != nil || c.young(newest) {
		return ignoreGone(err)
	}
	if err := os.RemoveAll(dir); err != nil {
		return fmt.Errorf("remove the logs of a pod that is gone: %w", err)
	}
	g.PodDirs++
	g.Bytes += size
	return nil
}

// single takes away the logs of instances that are no more, each with its
// rotated files. A container's newest log stays: its instance may be in the
// making, and of a container that is gone it is what is left to read.
func (c *Collector) single(dir string, kept map[string]bool, g *Collected) error {
	containers, err := os.ReadDir(dir)
	if err != nil {
		return ignoreGone(err)
	}
	var errs []error
	for _, k := range containers {
		if !k.IsDir() {
			continue
		}
		of := filepath.Join(dir, k.Name())
		files, err := os.ReadDir(of)
		if err != nil {
			errs = append(errs, ignoreGone(err))
			continue
		}
		runs := map[uint32][]fs.DirEntry{}
		newest := uint32(0)
		for _, f := range files {
			if n, ok := ParseAttempt(f.Name()); ok && f.Type().IsRegular() {
				runs[n] = append(runs[n], f)
				newest = max(newest, n)
			}
		}
		for n, files := range runs {
			if n != newest && !kept[filepath.Join(of, LogFileName(n))] {
				errs = append(errs, c.run(of, files, g))
			}
		}
	}
	return errors.Join(errs...)
}

// run takes the log of one run away, with its rotated files.
func (c *Collector) run(dir string, files []fs.DirEntry, g *Collected) error {
	var size int64
	for _, f := range files {
		st, err := f.Info()
		if err != nil || c.young(st.ModTime()) {
			return ignoreGone(err)
		}
		size += st.Size()
	}
	for _, f := range files {
		if err := os.Remove(filepath.Join(dir, f.Name())); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("remove the log of a container that is gone: %w", err)
		}
	}
	g.Logs++
	g.Bytes += size
	return nil
}

// links takes away links into Root that lead nowhere.
func (c *Collector) links(g *Collected) error {
	if c.LinkDir == "" {
		return nil
	}
	entries, err := os.ReadDir(c.LinkDir)
	if err != nil {
		return ignoreGone(err)
	}
	var errs []error
	for _, e := range entries {
		link := filepath.Join(c.LinkDir, e.Name())
		target, err := os.Readlink(link)
		if err != nil || !strings.HasPrefix(target, filepath.Clean(c.PodLogsDir)+"/") {
			continue
		}
		st, err := e.Info()
		if err != nil || c.young(st.ModTime()) {
			continue
		}
		if _, err := os.Lstat(target); !errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err := os.Remove(link); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, fmt.Errorf("remove a link to a log that is gone: %w", err))
			continue
		}
		g.Links++
	}
	return errors.Join(errs...)
}

func (c *Collector) young(t time.Time) bool { return c.Now().Sub(t) < c.MinAge }

func ignoreGone(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}
