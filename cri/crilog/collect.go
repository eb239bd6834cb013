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

// Owners are the pods and containers that own logs.
type Owners struct {
	// Pods are the UIDs of all existing pods, of any owner. Their directories are kept.
	Pods map[string]bool
	// Owns reports whether a deleted pod was created by berth. Logs of other pods are kept, and so are
	// the links to them.
	Owns func(uid string) bool
	// Logs are the log paths of the existing instances by UID, for pods whose instances are all
	// known. A pod that is not in it keeps all of its logs.
	Logs map[string]map[string]bool
}

// Collected counts what one run of the Collector removed.
type Collected struct {
	PodDirs int   // directories of deleted pods
	Logs    int   // of removed containers, with their rotated files
	Links   int   // to removed logs
	Bytes   int64 // freed
}

// Collector removes logs of berth's pods that have no owner any more: directories of deleted pods,
// logs of removed containers of existing pods, and dangling links.
type Collector struct {
	PodLogsDir  string        // /var/log/pods
	LinkDir     string        // directory of the links, /var/log/containers; empty: none
	Interval    time.Duration // between runs
	MinAge      time.Duration // since the last change of what is removed
	Owners      func(context.Context) (Owners, error)
	OnCollected func(Collected, error) // called after each run; may be nil
	Now         func() time.Time
}

// Run collects once per interval until ctx ends.
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

// RunOnce collects once. A file that cannot be removed does not stop the run.
func (c *Collector) RunOnce(ctx context.Context) (g Collected, err error) {
	owners, err := c.Owners(ctx)
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
		uid := podOf(e.Name())
		if !e.IsDir() || uid == "" {
			continue
		}
		dir := filepath.Join(c.PodLogsDir, e.Name())
		switch logs, known := owners.Logs[uid]; {
		case known:
			errs = append(errs, c.collectContainerLogs(dir, logs, &g))
		case !owners.Pods[uid] && owners.Owns(uid):
			errs = append(errs, c.collectPodDir(dir, &g))
		}
	}
	errs = append(errs, c.collectLinks(owners, &g))
	return g, errors.Join(errs...)
}

// podOf returns the UID in the name of a pod's log directory. Empty: it is none.
func podOf(dir string) string {
	parts := strings.Split(dir, "_") // namespace, name and UID contain no underscore
	if len(parts) != 3 {
		return ""
	}
	return parts[2]
}

// collectPodDir removes the directory of a pod.
func (c *Collector) collectPodDir(dir string, g *Collected) error {
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
	if err != nil || c.isYoung(newest) {
		return ignoreNotExist(err)
	}
	if err := os.RemoveAll(dir); err != nil {
		return fmt.Errorf("remove logs of deleted pod: %w", err)
	}
	g.PodDirs++
	g.Bytes += size
	return nil
}

// collectContainerLogs removes the logs of instances that do not exist any more, each with its
// rotated files. The newest log of a container is kept: its instance may be in creation, and for a
// removed container it is the last one to read.
func (c *Collector) collectContainerLogs(dir string, owned map[string]bool, g *Collected) error {
	containers, err := os.ReadDir(dir)
	if err != nil {
		return ignoreNotExist(err)
	}
	var errs []error
	for _, k := range containers {
		if !k.IsDir() {
			continue
		}
		of := filepath.Join(dir, k.Name())
		files, err := os.ReadDir(of)
		if err != nil {
			errs = append(errs, ignoreNotExist(err))
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
			if n != newest && !owned[filepath.Join(of, LogFileName(n))] {
				errs = append(errs, c.collectAttempt(of, files, g))
			}
		}
	}
	return errors.Join(errs...)
}

// collectAttempt removes the log of one attempt with its rotated files.
func (c *Collector) collectAttempt(dir string, files []fs.DirEntry, g *Collected) error {
	var size int64
	for _, f := range files {
		st, err := f.Info()
		if err != nil || c.isYoung(st.ModTime()) {
			return ignoreNotExist(err)
		}
		size += st.Size()
	}
	for _, f := range files {
		if err := os.Remove(filepath.Join(dir, f.Name())); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("remove log of removed container: %w", err)
		}
	}
	g.Logs++
	g.Bytes += size
	return nil
}

// collectLinks removes dangling links into PodLogsDir to logs of berth's pods.
func (c *Collector) collectLinks(owners Owners, g *Collected) error {
	if c.LinkDir == "" {
		return nil
	}
	entries, err := os.ReadDir(c.LinkDir)
	if err != nil {
		return ignoreNotExist(err)
	}
	var errs []error
	for _, e := range entries {
		link := filepath.Join(c.LinkDir, e.Name())
		target, err := os.Readlink(link)
		if err != nil {
			continue
		}
		rest, inside := strings.CutPrefix(target, filepath.Clean(c.PodLogsDir)+"/")
		dir, _, _ := strings.Cut(rest, "/")
		if uid := podOf(dir); !inside || owners.Logs[uid] == nil && !owners.Owns(uid) {
			continue
		}
		st, err := e.Info()
		if err != nil || c.isYoung(st.ModTime()) {
			continue
		}
		if _, err := os.Lstat(target); !errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err := os.Remove(link); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, fmt.Errorf("remove dangling log link: %w", err))
			continue
		}
		g.Links++
	}
	return errors.Join(errs...)
}

func (c *Collector) isYoung(t time.Time) bool { return c.Now().Sub(t) < c.MinAge }

func ignoreNotExist(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}
