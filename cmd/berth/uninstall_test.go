package main

import (
	"path/filepath"
	"strings"
	"testing"

	"berth/node/handover"
)

// berth purge-for-package runs when apt purges the package, and must not end pods of the kubelet.
func TestPurgeFailsDuringTakeover(t *testing.T) {
	t.Parallel()
	state := t.TempDir()
	if err := (&handover.Record{Direction: handover.Takeover}).Write(state); err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	// An invalid configuration ends a purge without the check before it changes anything.
	err := purge(t.Context(), &out, filepath.Join(state, handover.RecordFile), state)
	if err == nil || !strings.Contains(err.Error(), "handback first") {
		t.Errorf("got error %v", err)
	}
}
