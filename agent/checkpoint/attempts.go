package checkpoint

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"berth/agent/plan"
)

// AttemptsFromLogs reads from a pod's log directory how often its containers had
// begun before the agent, by name: each instance has a log of its own,
// <container>/<attempt>.log. It is for a pod of which both the store and the
// runtime have lost what was, so that its count goes on and no log gets two
// instances' lines. Later logs are of a pod that this agent has ended since.
func AttemptsFromLogs(dir string, before time.Time) map[string]plan.Restart {
	var out map[string]plan.Restart
	containers, _ := os.ReadDir(dir) // a pod that never ran has none
	for _, c := range containers {
		if at, err := c.Info(); err != nil || !at.ModTime().Before(before) {
			continue
		}
		logs, _ := os.ReadDir(filepath.Join(dir, c.Name()))
		for _, l := range logs {
			attempt, rest, _ := strings.Cut(l.Name(), ".")
			n, err := strconv.ParseUint(attempt, 10, 31)
			if err != nil || rest != "log" && !strings.HasPrefix(rest, "log.") {
				continue
			}
			if r := out[c.Name()]; r.Next <= uint32(n) {
				if out == nil {
					out = map[string]plan.Restart{}
				}
				out[c.Name()] = plan.Restart{Next: uint32(n) + 1}
			}
		}
	}
	return out
}
