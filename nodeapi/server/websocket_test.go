package server

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/gorilla/websocket"
	"k8s.io/streaming/pkg/httpstream"
	upgrader "k8s.io/streaming/pkg/httpstream/spdy"
)

// fakeStreamingRuntime is a runtime whose command writes "output" and exits with a code.
func fakeStreamingRuntime(t *testing.T, code int) (target string) {
	t.Helper()
	return fakeCommand(t, code, func(stdout io.Writer) { _, _ = io.WriteString(stdout, "output") })
}

// fakeCommand is a runtime whose command writes output and exits with a code.
func fakeCommand(t *testing.T, code int, output func(stdout io.Writer)) (target string) {
	t.Helper()
	status := `{"status":"Success"}`
	if code != 0 {
		status = fmt.Sprintf(
			`{"status":"Failure","reason":"NonZeroExitCode","message":"x",`+
				`"details":{"causes":[{"reason":"ExitCode","message":"%d"}]}}`,
			code,
		)
	}
	var all sync.WaitGroup
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, err := httpstream.Handshake(r, w, []string{"v4.channel.k8s.io"}); err != nil {
			return
		}
		created := make(chan httpstream.Stream, 4)
		conn := upgrader.NewResponseUpgrader().
			UpgradeResponse(w, r, func(s httpstream.Stream, _ <-chan struct{}) error { created <- s; return nil })
		if conn == nil {
			return
		}
		all.Go(func() {
			defer conn.Close()
			streams := map[string]httpstream.Stream{}
			for len(streams) < 2 {
				select {
				case s := <-created:
					streams[s.Headers().Get("streamType")] = s
				case <-conn.CloseChan():
					return
				}
			}
			output(streams["stdout"])
			_ = streams["stdout"].Close()
			_, _ = streams["error"].Write([]byte(status))
			_ = streams["error"].Close()
			<-conn.CloseChan()
		})
	}))
	t.Cleanup(func() { s.Close(); all.Wait() })
	return s.URL + "/exec/token"
}

// readChannels returns the data that a client receives until the WebSocket is closed, by channel.
func readChannels(t *testing.T, ws *websocket.Conn, encoded bool) map[byte]string {
	t.Helper()
	all := map[byte]string{}
	for {
		_, message, err := ws.ReadMessage()
		if err != nil {
			if !websocket.IsCloseError(err, websocket.CloseNormalClosure) {
				t.Error(err)
			}
			return all
		}
		channel, data := message[0], message[1:]
		if encoded {
			channel -= '0'
			if data, err = base64.StdEncoding.DecodeString(string(data)); err != nil {
				t.Error(err)
			}
		}
		all[channel] += string(data)
	}
}

// TestWebSocketChannelProtocols covers all versions, including the first one without a name,
// because client libraries of other languages use old ones.
func TestWebSocketChannelProtocols(t *testing.T) {
	t.Parallel()
	const exitMessage = "command terminated with exit code 3"
	for _, protocol := range []string{
		"", "channel.k8s.io", "base64.channel.k8s.io", "v4.channel.k8s.io", "v4.base64.channel.k8s.io",
		"v5.channel.k8s.io",
	} {
		for _, code := range []int{0, 3} {
			t.Run(fmt.Sprintf("%q exit code %d", protocol, code), func(t *testing.T) {
				t.Parallel()
				target := fakeStreamingRuntime(t, code)
				w := serve(t, func(o *Options) {
					o.Handlers = Handlers{
						Exec: func(context.Context, StreamRequest) (string, error) { return target, nil },
					}
				})
				var requested []string
				if protocol != "" {
					requested = []string{"v9.channel.k8s.io", protocol} // the first supported one is selected
				}
				ws := dialWS(t, w, "/exec/ns/p/c?command=x&output=1", requested...)
				if ws.Subprotocol() != protocol {
					t.Errorf("protocol %q was accepted", ws.Subprotocol())
				}
				got := readChannels(t, ws, strings.Contains(protocol, "base64"))
				if got[channelOut] != "output" {
					t.Errorf("stdout: %q", got[channelOut])
				}
				if err := checkStatus(protocol, code, got[channelStatus], exitMessage); err != nil {
					t.Error(err)
				}
			})
		}
	}
}

// checkStatus returns an error if the reported status of a command is wrong.
func checkStatus(protocol string, code int, status, exitMessage string) error {
	switch versioned := strings.HasPrefix(protocol, "v"); {
	case versioned && code == 0 && strings.Contains(status, `"status":"Success"`),
		versioned && code != 0 && strings.Contains(status, `"reason":"NonZeroExitCode"`) &&
			strings.Contains(status, exitMessage),
		!versioned && code == 0 && status == "",
		!versioned && code != 0 && status == exitMessage:
		return nil
	}
	return errors.New("unexpected status: " + status)
}
