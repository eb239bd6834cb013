package nodeapi

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/url"

	"golang.org/x/sys/unix"
)

// Client asks the agent on this node. It is safe for use from many goroutines.
type Client struct {
	socket string
	http   *http.Client
}

// Dial returns a client of the agent that listens on socketPath. The connection
// is made by the first question; if that cannot be done, the question's error
// says whether the agent is not running or the caller may not ask.
func Dial(socketPath string) (*Client, error) {
	if err := checkSocketPath(socketPath); err != nil {
		return nil, err
	}
	transport := &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			var d net.Dialer
			conn, err := d.DialContext(ctx, "unix", socketPath)
			if err != nil {
				return nil, &dialError{socket: socketPath, err: err}
			}
			return conn, nil
		},
		DisableCompression: true,
	}
	return &Client{socket: socketPath, http: &http.Client{Transport: transport}}, nil
}

// Close ends the idle connections of the client.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// dialError says in the user's words why there is no connection.
type dialError struct {
	socket string
	err    error
}

func (e *dialError) Unwrap() error { return e.err }

func (e *dialError) Error() string {
	switch {
	case errors.Is(e.err, fs.ErrNotExist), errors.Is(e.err, unix.ECONNREFUSED):
		return fmt.Sprintf("berth is not running? %v", e.err)
	case errors.Is(e.err, fs.ErrPermission):
		return fmt.Sprintf("only root may ask the agent: %v", e.err)
	default:
		return fmt.Sprintf("no connection to the agent: %v", e.err)
	}
}

// question is one request to the agent.
type question struct {
	method, path string
	query        url.Values
	body         []byte
}

// ask sends q and returns the answer, which the caller must close. Anything but
// success has become an error.
func (c *Client) ask(ctx context.Context, q question) (*http.Response, error) {
	u := url.URL{Scheme: "http", Host: "berth", RawQuery: q.query.Encode()}
	req, err := http.NewRequestWithContext(ctx, q.method, u.String(), bytes.NewReader(q.body))
	if err != nil {
		return nil, err
	}
	// Set here, because parsing would fail on or change an unusual pod name.
	if req.URL.Path, err = url.PathUnescape(q.path); err != nil {
		return nil, err
	}
	req.URL.RawPath = q.path
	resp, err := c.http.Do(req)
	if err != nil {
		if dial, ok := errors.AsType[*dialError](err); ok {
			return nil, dial
		}
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		return nil, fmt.Errorf("ask the agent on %s: %w", c.socket, err)
	}
	if resp.StatusCode/100 != 2 {
		defer func() { _ = resp.Body.Close() }()
		return nil, readError(resp)
	}
	return resp, nil
}

// fetch asks q and decodes the answer.
func fetch[T any](ctx context.Context, c *Client, q question) (T, error) {
	var answer T
	resp, err := c.ask(ctx, q)
	if err != nil {
		return answer, err
	}
	defer func() { _ = resp.Body.Close() }()
	if err := json.NewDecoder(resp.Body).Decode(&answer); err != nil {
		return answer, fmt.Errorf("read the answer of the agent: %w", err)
	}
	_, _ = io.Copy(io.Discard, resp.Body) // lets the connection be used again
	return answer, nil
}

// podPattern is the path of one pod for the server; podPath fills it in.
const podPattern = "/v1/namespaces/{namespace}/pods/{name}"

func podPath(namespace, name, suffix string) string {
	return "/v1/namespaces/" + url.PathEscape(namespace) + "/pods/" + url.PathEscape(name) + suffix
}
