package placements

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"regexp"
	"strconv"
)

// scoreLine matches a line of kube-scheduler's log with the weighted score that a plugin gives to a node.
var scoreLine = regexp.MustCompile(
	`"Plugin scored node for pod" pod="([^"]+)" plugin="([^"]+)" node="([^"]+)" score=(-?\d+)`)

// schedulerLog reads the scores in the log of kube-scheduler.
type schedulerLog struct {
	path   string
	offset int64 // of the first line that was not read yet
}

// scores returns the last scores of a pod since the last call, by node and plugin.
func (l *schedulerLog) scores(pod string) (map[string]map[string]int64, error) {
	f, err := os.Open(l.path)
	if err != nil {
		return nil, fmt.Errorf("read log: %w", err)
	}
	defer f.Close()
	if _, err := f.Seek(l.offset, io.SeekStart); err != nil {
		return nil, fmt.Errorf("read log: %w", err)
	}
	out := map[string]map[string]int64{}
	lines := bufio.NewReader(f)
	for {
		line, err := lines.ReadString('\n')
		if err != nil {
			return out, nil // an incomplete line is read by the next call
		}
		l.offset += int64(len(line))
		m := scoreLine.FindStringSubmatch(line)
		if m == nil || m[1] != pod {
			continue
		}
		score, err := strconv.ParseInt(m[4], 10, 64)
		if err != nil {
			return nil, fmt.Errorf("read log: %w", err)
		}
		if out[m[3]] == nil {
			out[m[3]] = map[string]int64{}
		}
		out[m[3]][m[2]] = score
	}
}
