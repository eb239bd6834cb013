package cli

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"berth/nodeapi"

	"golang.org/x/sys/unix"
	"golang.org/x/term"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/remotecommand"
	"k8s.io/streaming/pkg/httpstream"
	"k8s.io/streaming/pkg/httpstream/spdy"
)

// process runs behind the fake streaming server.
type process struct {
	stdin          io.Reader
	stdout, stderr io.Writer
	resize         io.Reader
}

// streamer is a fake streaming server of the runtime: it runs the process for each request and
// returns its exit code.
func streamer(t *testing.T, streams int, run func(process) int) *httptest.Server {
	t.Helper()
	var wg sync.WaitGroup
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		wg.Add(1)
		defer wg.Done()
		if _, err := httpstream.Handshake(r, w, []string{remotecommand.StreamProtocolV4Name}); err != nil {
			t.Error(err)
			return
		}
		got := make(chan httpstream.Stream, streams)
		conn := spdy.NewResponseUpgrader().
			UpgradeResponse(w, r, func(s httpstream.Stream, responded <-chan struct{}) error {
				go func() { <-responded; got <- s }()
				return nil
			})
		if conn == nil {
			t.Error("connection was not upgraded")
			return
		}
		defer func() { _ = conn.Close() }()
		var p process
		var status io.Writer
		for range streams {
			switch s := <-got; s.Headers().Get(corev1.StreamType) {
			case corev1.StreamTypeStdin:
				p.stdin = s
			case corev1.StreamTypeStdout:
				p.stdout = s
			case corev1.StreamTypeStderr:
				p.stderr = s
			case corev1.StreamTypeResize:
				p.resize = s
			case corev1.StreamTypeError:
				status = s
			}
		}
		_ = json.NewEncoder(status).Encode(exitStatus(run(p)))
	}))
	t.Cleanup(func() { srv.CloseClientConnections(); srv.Close(); wg.Wait() })
	return srv
}

func exitStatus(code int) metav1.Status {
	if code == 0 {
		return metav1.Status{Status: metav1.StatusSuccess}
	}
	return metav1.Status{Status: metav1.StatusFailure, Reason: remotecommand.NonZeroExitCodeReason,
		Details: &metav1.StatusDetails{
			Causes: []metav1.StatusCause{{Type: remotecommand.ExitCodeCauseType, Message: fmt.Sprint(code)}},
		}}
}

// execAgent is an agent whose commands run on srv. It stores the request.
func execAgent(srv *httptest.Server, request *nodeapi.ExecRequest) nodeapi.Handlers {
	h := fakeAgent()
	h.ExecURL = func(_ context.Context, r nodeapi.ExecRequest) (string, error) {
		*request = r
		return srv.URL + "/exec/token", nil
	}
	return h
}

func TestExecPassesStreamsAndExitCode(t *testing.T) {
	for _, code := range []int{0, 3} {
		t.Run(fmt.Sprint(code), func(t *testing.T) {
			srv := streamer(t, 4, func(p process) int {
				in, err := io.ReadAll(p.stdin)
				if err != nil {
					t.Error(err)
				}
				_, _ = fmt.Fprintf(p.stdout, "out:%s", in)
				_, _ = io.WriteString(p.stderr, "err\n")
				return code
			})
			var request nodeapi.ExecRequest
			path := socket(t, execAgent(srv, &request))
			stdout, stderr, got := run(
				t,
				path,
				invocation{
					args:  []string{"exec", "web", "-c", "app", "-i", "--", "cat", "-n"},
					stdin: strings.NewReader("hello"),
				},
			)
			want := "err\n"
			if code != 0 {
				want += fmt.Sprintf("command terminated with exit code %d\n", code)
			}
			if stdout != "out:hello" || stderr != want || got != code {
				t.Errorf("exit %d, stdout %q, stderr %q", got, stdout, stderr)
			}
			if a := fmt.Sprint(request); a != "{default web app [cat -n] true false}" {
				t.Errorf("got request %s", a)
			}
		})
	}
}

func TestExecWithoutTerminalRequestsNoTTY(t *testing.T) {
	srv := streamer(t, 4, func(p process) int { _, _ = io.Copy(io.Discard, p.stdin); return 0 })
	var request nodeapi.ExecRequest
	path := socket(t, execAgent(srv, &request))
	_, stderr, code := run(
		t,
		path,
		invocation{args: []string{"exec", "-it", "crash", "--", "sh"}, stdin: strings.NewReader("")},
	)
	if request.TTY || code != 0 || !strings.Contains(stderr, "Unable to use a TTY - input is not a terminal") {
		t.Errorf("TTY %t, exit %d, stderr %q", request.TTY, code, stderr)
	}
}

func TestExecReportsStartErrors(t *testing.T) {
	for _, tt := range []struct {
		name string
		url  func(srv *httptest.Server) (string, error)
		want string
	}{
		{
			"the agent rejects the request", func(*httptest.Server) (string, error) {
				return "", nodeapi.NotFound("web")
			},
			"Error from agent (NotFound): pods \"web\" not found\n",
		},
		{
			"the URL is invalid", func(*httptest.Server) (string, error) { return "http://[", nil },
			"error: parse streaming URL of the runtime: ",
		},
		{
			"the token was already used", func(srv *httptest.Server) (string, error) { return srv.URL + "/gone", nil },
			"error: exec: ",
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			srv := httptest.NewServer(http.NotFoundHandler())
			defer srv.Close()
			h := fakeAgent()
			h.ExecURL = func(context.Context, nodeapi.ExecRequest) (string, error) { return tt.url(srv) }
			_, stderr, code := run(t, socket(t, h), invocation{args: []string{"exec", "web", "-c", "app", "--", "ls"}})
			if !strings.HasPrefix(stderr, tt.want) || code != 1 {
				t.Errorf("exit %d, stderr %q, want %q", code, stderr, tt.want)
			}
		})
	}
}

// openPTY returns both ends of a new terminal of the given size.
func openPTY(t *testing.T, width, height uint16) (user, program *os.File) {
	t.Helper()
	user, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = user.Close() })
	number, err := unix.IoctlGetInt(int(user.Fd()), unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.IoctlSetPointerInt(int(user.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	program, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = program.Close() })
	resize(t, user, width, height)
	return user, program
}

func resize(t *testing.T, f *os.File, width, height uint16) {
	t.Helper()
	if err := unix.IoctlSetWinsize(int(f.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Col: width, Row: height}); err != nil {
		t.Fatal(err)
	}
}

func TestExecPassesTerminalSizeAndRestoresTerminal(t *testing.T) { // V3
	user, program := openPTY(t, 80, 24)
	before, err := term.GetState(int(program.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	var rawDuring bool
	srv := streamer(t, 4, func(p process) int {
		if p.stderr != nil {
			t.Error("stderr was requested for a terminal, which has one output")
		}
		tio, err := unix.IoctlGetTermios(int(program.Fd()), unix.TCGETS)
		rawDuring = err == nil && tio.Lflag&(unix.ICANON|unix.ECHO) == 0
		sizes := json.NewDecoder(p.resize)
		for i := range 2 {
			var s struct{ Width, Height uint16 }
			if err := sizes.Decode(&s); err != nil {
				t.Error(err)
				return 1
			}
			_, _ = fmt.Fprintf(p.stdout, "%dx%d\n", s.Width, s.Height)
			if i == 0 {
				resize(t, user, 100, 40)
				if err := unix.Kill(os.Getpid(), unix.SIGWINCH); err != nil {
					t.Error(err)
				}
			}
		}
		// Ctrl-C: in raw mode it is a byte for the command, not a signal.
		if _, err := user.Write([]byte{3}); err != nil {
			t.Error(err)
		}
		key := make([]byte, 1)
		if _, err := io.ReadFull(p.stdin, key); err != nil {
			t.Error(err)
		}
		_, _ = fmt.Fprintf(p.stdout, "key %#x\n", key[0])
		return 7
	})
	var request nodeapi.ExecRequest
	path := socket(t, execAgent(srv, &request))
	root := rootOn(path, screen{width: 80})
	var out bytes.Buffer
	root.SetIn(program)
	root.SetOut(&out)
	root.SetErr(io.Discard)
	root.SetArgs([]string{"exec", "web", "-c", "app", "-it", "--", "sh"})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	err = root.ExecuteContext(ctx)
	if exit, ok := errors.AsType[*ExitError](err); !ok || exit.Code != 7 {
		t.Errorf("exec ended with %v", err)
	}
	if want := "80x24\n100x40\nkey 0x3\n"; out.String() != want {
		t.Errorf("stdout %q, want %q", out.String(), want)
	}
	if !request.TTY || !rawDuring {
		t.Errorf("TTY %t, raw mode %t", request.TTY, rawDuring)
	}
	after, err := term.GetState(int(program.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	if fmt.Sprint(*before) != fmt.Sprint(*after) {
		t.Error("terminal was not restored")
	}
}

func TestTerminalIsRestoredWhenExecIsCanceled(t *testing.T) { // V3
	_, program := openPTY(t, 80, 24)
	before, err := term.GetState(int(program.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	srv := streamer(t, 4, func(p process) int {
		cancel()
		// Wait until the connection is closed, which requires that all terminal sizes are read.
		var sizes sync.WaitGroup
		sizes.Go(func() { _, _ = io.Copy(io.Discard, p.resize) })
		_, _ = io.Copy(io.Discard, bufio.NewReader(p.stdin))
		sizes.Wait()
		return 0
	})
	var request nodeapi.ExecRequest
	root := rootOn(socket(t, execAgent(srv, &request)), screen{width: 80})
	root.SetIn(program)
	root.SetOut(io.Discard)
	root.SetErr(io.Discard)
	root.SetArgs([]string{"exec", "web", "-c", "app", "-it", "--", "sh"})
	if code := PrintError(io.Discard, root.ExecuteContext(ctx)); code != 130 {
		t.Errorf("exit %d, want 130", code)
	}
	after, err := term.GetState(int(program.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	if fmt.Sprint(*before) != fmt.Sprint(*after) {
		t.Error("terminal was not restored")
	}
}
