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

// TestServerClosesConnectionWithSlowBody covers clients that announce a body and send only part of
// it, both when the request is rejected and when the body is read.
func TestServerClosesConnectionWithSlowBody(t *testing.T) {
	t.Parallel()
	const far = 2 * time.Minute
	for name, h := range map[string]http.HandlerFunc{
		"refused": func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "who?", http.StatusUnauthorized) },
		"read": func(w http.ResponseWriter, r *http.Request) {
			if _, err := io.ReadAll(r.Body); err == nil {
				t.Error("read returned without error for an incomplete body")
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
		if response, err := io.ReadAll(conn); err != nil {
			t.Errorf("%s: connection still open: %v after %q", name, err, response)
		}
	}
}
