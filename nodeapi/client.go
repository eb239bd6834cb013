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

// Client is a client of the agent on this node. It is safe for concurrent use.
type Client struct {
	socket string
	http   *http.Client
}

// Dial returns a client of the agent that listens on socketPath. The connection is made by the
// first request. If the connection fails, the error of that request says whether the agent is down
// or access is denied.
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

// Close closes the idle connections of the client.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// dialError explains why there is no connection.
type dialError struct {
	socket string
	err    error
}

func (e *dialError) Unwrap() error { return e.err }

func (e *dialError) Error() string {
	switch {
	case errors.Is(e.err, fs.ErrNotExist), errors.Is(e.err, unix.ECONNREFUSED):
		return fmt.Sprintf("unable to connect to the agent, is berth running? %v", e.err)
	case errors.Is(e.err, fs.ErrPermission):
		return fmt.Sprintf("permission denied, only root can access the agent: %v", e.err)
	default:
		return fmt.Sprintf("unable to connect to the agent: %v", e.err)
	}
}

// request is one request to the agent.
type request struct {
	method, path string
	query        url.Values
	body         []byte
}

// do sends q and returns the response, whose body the caller must close. A status other than 2xx is
// returned as an error.
func (c *Client) do(ctx context.Context, q request) (*http.Response, error) {
	u := url.URL{Scheme: "http", Host: "berth", RawQuery: q.query.Encode()}
	req, err := http.NewRequestWithContext(ctx, q.method, u.String(), bytes.NewReader(q.body))
	if err != nil {
		return nil, err
	}
	// Set directly, because parsing would fail on or change an unusual pod name.
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
		return nil, fmt.Errorf("request to the agent on %s: %w", c.socket, err)
	}
	if resp.StatusCode/100 != 2 {
		defer func() { _ = resp.Body.Close() }()
		return nil, readError(resp)
	}
	return resp, nil
}

// fetch sends q and decodes the response.
func fetch[T any](ctx context.Context, c *Client, q request) (T, error) {
	var answer T
	resp, err := c.do(ctx, q)
	if err != nil {
		return answer, err
	}
	defer func() { _ = resp.Body.Close() }()
	if err := json.NewDecoder(resp.Body).Decode(&answer); err != nil {
		return answer, fmt.Errorf("decode response of the agent: %w", err)
	}
	_, _ = io.Copy(io.Discard, resp.Body) // allows reuse of the connection
	return answer, nil
}

// podPattern is the server's route pattern of one pod. podPath fills it in.
const podPattern = "/v1/namespaces/{namespace}/pods/{name}"

func podPath(namespace, name, suffix string) string {
	return "/v1/namespaces/" + url.PathEscape(namespace) + "/pods/" + url.PathEscape(name) + suffix
}
