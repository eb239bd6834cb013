package main

import (
	"path/filepath"

	"berth/agent/checkpoint"
)

// init makes this program able to check the local store: checkpoint.Open executes it again for that.
func init() { checkpoint.RunCheckProcess() }

// openStore starts to open the local store. The check of its file runs in a child process and
// overlaps with other parts of the start. The returned function waits for the result.
func (b *berth) openStore() (wait func() (*checkpoint.Store, *checkpoint.Quarantined, error)) {
	var store *checkpoint.Store
	var quarantined *checkpoint.Quarantined
	var err error
	done := make(chan struct{})
	go func() {
		defer close(done)
		store, quarantined, err = checkpoint.Open(checkpoint.Options{
			Path: filepath.Join(b.config.StateDir, storeFile), Log: b.log,
			Heartbeat: func() { b.heartbeat(storeLoop) },
		})
	}()
	return func() (*checkpoint.Store, *checkpoint.Quarantined, error) {
		<-done
		return store, quarantined, err
	}
}
