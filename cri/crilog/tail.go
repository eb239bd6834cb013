package crilog

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
)

// blockSize is how much is read backwards at once.
const blockSize = 64 << 10

// counter counts lines from the end of a file towards its begin. A line is what
// ends with a record that is not partial; a last line without its end is one too.
// The streams are counted together, so that the first of the last lines may lack
// its begin if a line of the other stream came in between.
type counter struct {
	wants func(Line) bool
	n     int64 // lines so far
	any   bool  // a record has been seen
}

// add takes the head of the record before those seen and reports whether a line
// ends with it.
func (c *counter) add(head []byte) bool {
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

// tailOf gives the offset where the last n lines of a file begin, and how many
// there are if that is fewer. It reads the file backwards as far as it must.
func tailOf(f io.ReaderAt, size, n int64, wants func(Line) bool) (offset, found int64, err error) {
	c := counter{wants: wants}
	next, end := size, size // begin of the record after, end of the one at hand
	buf := make([]byte, blockSize+headMax)
	for start := size; start > 0; {
		from := max(start-blockSize, 0)
		b := buf[:min(start-from+headMax, size-from)]
		if got, err := f.ReadAt(b, from); err != nil && (!errors.Is(err, io.EOF) || got < len(b)) {
			return 0, 0, fmt.Errorf("read log backwards: %w", err)
		}
		consider := func(begin int64) bool {
			head := b[begin-from : min(end-from, begin-from+headMax, int64(len(b)))]
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

// tailOfStream is tailOf for what can only be read forwards: the offset is in
// the bytes that r gives.
func tailOfStream(r io.Reader, n int64, wants func(Line) bool) (offset, found int64, err error) {
	in := bufio.NewReaderSize(r, blockSize)
	var ends []int64 // where lines end; at most the last n+1
	var lines, at int64
	open := false // the last record was partial
	head := make([]byte, 0, headMax)
	for err == nil {
		first := true
		for more := true; more; {
			var b []byte
			b, err = in.ReadSlice('\n')
			more = errors.Is(err, bufio.ErrBufferFull)
			at += int64(len(b))
			if first {
				head, first = append(head[:0], b[:min(len(b), headMax)]...), false
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
	after := n // how many of ends lie in what is wanted
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
