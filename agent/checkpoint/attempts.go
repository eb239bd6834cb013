package checkpoint

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"berth/agent/plan"
)

// AttemptsFromLogs derives the restart counts of a pod's containers from its log directory, by
// container name. Each container instance has its own log file, <container>/<attempt>.log. Only
// container directories modified before the given time count. It serves pods that are known neither
// to the store nor to the runtime. Their restart count then continues, and no log file receives the
// output of two instances.
func AttemptsFromLogs(dir string, before time.Time) map[string]plan.RestartState {
	var out map[string]plan.RestartState
	containers, _ := os.ReadDir(dir) // the directory does not exist before the first start
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
			if r := out[c.Name()]; r.NextAttempt <= uint32(n) {
				if out == nil {
					out = map[string]plan.RestartState{}
				}
				out[c.Name()] = plan.RestartState{NextAttempt: uint32(n) + 1}
			}
		}
	}
	return out
}
