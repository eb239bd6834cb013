package crilog

import "context"

// LastLines gives the end of what a container wrote to both streams: at most so many
// lines of it and at most so many bytes. It is what a container without a
// termination message has said last.
func LastLines(ctx context.Context, path string, lines, bytes int) ([]byte, error) {
	keep := &ending{most: bytes}
	tail := int64(lines)
	err := Read(ctx, Options{Path: path, Tail: &tail, Stdout: keep, Stderr: keep})
	return keep.b, err
}

// ending keeps the last bytes that are written to it.
type ending struct {
	b    []byte
	most int
}

func (e *ending) Write(p []byte) (int, error) {
	e.b = append(e.b, p[max(len(p)-e.most, 0):]...)
	if over := len(e.b) - e.most; over > 0 {
		e.b = e.b[:copy(e.b, e.b[over:])]
	}
	return len(p), nil
}
