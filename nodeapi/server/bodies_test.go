package server

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

// TestABodyThatDoesNotComeIsNotWaitedFor: a client that promises a body and sends next
// to nothing is let go, whether its request is refused or its body read.
func TestABodyThatDoesNotComeIsNotWaitedFor(t *testing.T) {
	t.Parallel()
	const far = 2 * time.Minute
	for name, h := range map[string]http.HandlerFunc{
		"refused": func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "who?", http.StatusUnauthorized) },
		"read": func(w http.ResponseWriter, r *http.Request) {
			if _, err := io.ReadAll(r.Body); err == nil {
				t.Error("a body that did not come was read")
			}
			w.WriteHeader(http.StatusBadRequest)
		},
	} {
		s := httptest.NewServer(boundBodies(h, 200*time.Millisecond))
		t.Cleanup(s.Close)
		conn, err := net.Dial("tcp", strings.TrimPrefix(s.URL, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if _, err := fmt.Fprint(conn, "POST /run HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\nslow"); err != nil {
			t.Fatal(err)
		}
		_ = conn.SetReadDeadline(time.Now().Add(far))
		if said, err := io.ReadAll(conn); err != nil {
			t.Errorf("%s: the connection is kept: %v after %q", name, err, said)
		}
	}
}
