package localservices

import (
	"log/slog"
	"slices"
	"strings"

	"berth/agent/source"
)

// Ignored reports the Services of manifest files that have no effect, because the node has joined a server.
type Ignored struct {
	names []string // of the last report
}

// Report logs the Services of a snapshot, unless they are the same as in the snapshot before.
func (i *Ignored) Report(snap source.Snapshot, log *slog.Logger) {
	names := make([]string, 0, len(snap.Services)) // sorted, as the snapshot is
	for _, svc := range snap.Services {
		names = append(names, svc.Namespace+"/"+svc.Name)
	}
	if slices.Equal(names, i.names) {
		return
	}
	if i.names = names; len(names) > 0 {
		log.Warn("services of manifest files ignored: the node has joined a server", "services",
			strings.Join(names, ", "))
	}
}
