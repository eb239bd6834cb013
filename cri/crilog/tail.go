package crilog

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
)

// blockSize is the size of a block when reading backwards.
const blockSize = 64 << 10

// lineCounter counts lines from the end of a file towards its start. A line is what ends with a
// record that is not partial. An unterminated last line counts too. The streams are counted
// together, so the first of the last lines may lack its start if a line of the other stream is
// interleaved.
type lineCounter struct {
	wants func(Line) bool
	n     int64 // lines so far
	any   bool  // a record has been counted
}

// add counts the head of the record before those counted so far and reports whether it ends a line.
func (c *lineCounter) add(head []byte) bool {
	l, err := ParseLine(head)
	if err != nil || !c.wants(l) {
		return false
	}
	ends := !l.Partial || !c.any
	c.any = true
	if ends {
		c.n++
	}
	return ends
}

// tailOf returns the offset at which the last n lines of a file start, and the number of lines if
// the file has fewer. It reads the file backwards as far as necessary.
func tailOf(f io.ReaderAt, size, n int64, wants func(Line) bool) (offset, found int64, err error) {
	c := lineCounter{wants: wants}
	next, end := size, size // start of the following record, end of the current one
	buf := make([]byte, blockSize+maxHead)
	for start := size; start > 0; {
		from := max(start-blockSize, 0)
		b := buf[:min(start-from+maxHead, size-from)]
		if got, err := f.ReadAt(b, from); err != nil && (!errors.Is(err, io.EOF) || got < len(b)) {
			return 0, 0, fmt.Errorf("read log backwards: %w", err)
		}
		consider := func(begin int64) bool {
			head := b[begin-from : min(end-from, begin-from+maxHead, int64(len(b)))]
			if c.add(head) && c.n > n {
				return true
			}
			next = begin
			return false
		}
		for i := start - 1 - from; i >= 0; i-- {
			j := bytes.LastIndexByte(b[:i+1], '\n')
			if j < 0 {
				break
			}
			if begin := from + int64(j) + 1; begin < end && consider(begin) {
				return next, n, nil
			}
			end, i = from+int64(j), int64(j)
		}
		if from == 0 && end > 0 && consider(0) {
			return next, n, nil
		}
		start = from
	}
	return 0, c.n, nil
}

// tailOfStream is tailOf for sources that can only be read forwards. The offset is in the bytes of
// r.
func tailOfStream(r io.Reader, n int64, wants func(Line) bool) (offset, found int64, err error) {
	in := bufio.NewReaderSize(r, blockSize)
	var ends []int64 // ends of lines, at most the last n+1
	var lines, at int64
	open := false // the last record was partial
	head := make([]byte, 0, maxHead)
	for err == nil {
		first := true
		for more := true; more; {
			var b []byte
			b, err = in.ReadSlice('\n')
			more = errors.Is(err, bufio.ErrBufferFull)
			at += int64(len(b))
			if first {
				head, first = append(head[:0], b[:min(len(b), maxHead)]...), false
			}
		}
		l, bad := ParseLine(bytes.TrimSuffix(head, []byte{'\n'}))
		if bad != nil || !wants(l) {
			continue
		}
		if open = l.Partial; open {
			continue
		}
		lines++
		if ends = append(ends, at); int64(len(ends)) > n+1 {
			ends = ends[1:]
		}
	}
	if !errors.Is(err, io.EOF) {
		return 0, 0, fmt.Errorf("count lines: %w", err)
	}
	after := n // number of ends inside the requested lines
	if open {
		lines++
		after--
	}
	if lines <= n {
		return 0, lines, nil
	}
	if n == 0 {
		return at, 0, nil
	}
	return ends[int64(len(ends))-1-after], n, nil
}
