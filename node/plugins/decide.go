package plugins

import (
	"maps"
	"slices"
	"time"
)

// socketID distinguishes a socket from an earlier one with the same path.
type socketID struct {
	Inode uint64
	Mtime int64 // nanoseconds
}

// pluginState is what is known of the plugin of one socket.
type pluginState struct {
	ID         socketID
	Busy       bool // a registration is in progress
	Registered bool
	RetryAt    time.Time // of a failed registration
}

// steps are the next steps, each list in the order of the paths. Deregistrations come first.
type steps struct {
	Cancel     []string // registrations in progress of sockets that are gone or replaced
	Deregister []string
	Forget     []string // plugins that are not registered and whose socket is gone
	Register   []string
	Next       time.Time // when a registration is repeated; zero: never
}

// decide compares the sockets with the known plugins.
func decide(sockets map[string]socketID, plugins map[string]pluginState, now time.Time) (s steps) {
	for _, path := range slices.Sorted(maps.Keys(plugins)) {
		p := plugins[path]
		id, exists := sockets[path]
		same := exists && id == p.ID
		switch {
		case p.Busy && !same:
			s.Cancel = append(s.Cancel, path) // its result is handled first
		case p.Busy, p.Registered && same:
		case p.Registered:
			s.Deregister = append(s.Deregister, path)
			if exists {
				s.Register = append(s.Register, path)
			}
		case !exists:
			s.Forget = append(s.Forget, path)
		case !same, !now.Before(p.RetryAt):
			s.Register = append(s.Register, path)
		case s.Next.IsZero() || p.RetryAt.Before(s.Next):
			s.Next = p.RetryAt
		}
	}
	for _, path := range slices.Sorted(maps.Keys(sockets)) {
		if _, known := plugins[path]; !known {
			s.Register = append(s.Register, path)
		}
	}
	return s
}
