package nodeapi

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Two output streams share one response as frames: one byte for the kind, four bytes for the length
// of the content in big-endian order, and the content. The last frame is always a Status. A
// response without it was truncated.
const (
	frameStdout byte = 1
	frameStderr byte = 2
	frameStatus byte = 3

	frameHeader = 5
	maxFrame    = 64 << 10
)

// frameWriter is the server side. It is locked, because stdout and stderr can be written
// concurrently.
type frameWriter struct {
	mu      sync.Mutex
	w       http.ResponseWriter
	flush   *http.ResponseController // nil: flushed when the buffers are full
	started bool
}

func newFrameWriter(w http.ResponseWriter, atOnce bool) *frameWriter {
	f := &frameWriter{w: w}
	if atOnce {
		f.flush = http.NewResponseController(w)
	}
	return f
}

type frameStream struct {
	f    *frameWriter
	kind byte
}

func (f *frameWriter) stream(kind byte) io.Writer { return frameStream{f: f, kind: kind} }

func (s frameStream) Write(p []byte) (int, error) {
	s.f.mu.Lock()
	defer s.f.mu.Unlock()
	for done := 0; done < len(p); {
		part := p[done:min(done+maxFrame, len(p))]
		if err := s.f.frame(s.kind, part); err != nil {
			return done, err
		}
		done += len(part)
	}
	return len(p), s.f.flushed()
}

func (f *frameWriter) frame(kind byte, content []byte) error {
	if !f.started {
		f.w.Header().Set("Content-Type", "application/octet-stream")
		f.started = true
	}
	var head [frameHeader]byte
	head[0] = kind
	binary.BigEndian.PutUint32(head[1:], uint32(len(content)))
	if _, err := f.w.Write(head[:]); err != nil {
		return err
	}
	_, err := f.w.Write(content)
	return err
}

func (f *frameWriter) flushed() error {
	if f.flush == nil {
		return nil
	}
	return f.flush.Flush()
}

// end writes the last frame, or err as an ordinary error response if nothing was written.
func (f *frameWriter) end(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err != nil && !f.started {
		writeError(f.w, err)
		return
	}
	st := metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusSuccess}
	if err != nil {
		st = statusOf(err)
	}
	body, encErr := json.Marshal(st)
	if encErr != nil {
		return
	}
	_ = f.frame(frameStatus, body[:min(len(body), maxFrame)]) // fails only if the client is disconnected
}

// readFrames copies the content of frames to stdout and stderr and returns the error that the last
// frame carries.
func readFrames(r io.Reader, stdout, stderr io.Writer) error {
	in := bufio.NewReader(r)
	var head [frameHeader]byte
	for {
		if _, err := io.ReadFull(in, head[:]); err != nil {
			return cutOff(err)
		}
		size := binary.BigEndian.Uint32(head[1:])
		if size > maxFrame {
			return fmt.Errorf(
				"invalid response of the agent: frame of %d bytes exceeds the maximum of %d",
				size,
				maxFrame,
			)
		}
		var to io.Writer
		switch head[0] {
		case frameStdout:
			to = stdout
		case frameStderr:
			to = stderr
		case frameStatus:
			return readStatusFrame(in, int64(size))
		default:
			return fmt.Errorf("invalid response of the agent: unknown frame kind %d", head[0])
		}
		if err := copyFrame(to, in, int64(size)); err != nil {
			return err
		}
	}
}

func copyFrame(to io.Writer, in io.Reader, size int64) error {
	_, err := io.CopyN(to, in, size)
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return cutOff(err)
	}
	return err
}

func cutOff(err error) error {
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	return fmt.Errorf("stream interrupted: %w", err)
}

func readStatusFrame(in io.Reader, size int64) error {
	body := make([]byte, size)
	if _, err := io.ReadFull(in, body); err != nil {
		return cutOff(err)
	}
	var st metav1.Status
	if err := json.Unmarshal(body, &st); err != nil {
		return fmt.Errorf("decode final status of a stream: %w", err)
	}
	if st.Status == metav1.StatusSuccess {
		return nil
	}
	return &apierrors.StatusError{ErrStatus: st}
}
