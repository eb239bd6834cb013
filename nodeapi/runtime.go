package nodeapi

import (
	"fmt"
	"net/http"
	"net/url"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/remotecommand"
)

// RuntimeStreams prepares to join streams to the runtime's streaming server at
// target, as ExecURL and Attach give it. The error of a command that ended with
// another code than 0 is an exec.CodeExitError of client-go.
func RuntimeStreams(target string) (remotecommand.Executor, error) {
	u, err := url.Parse(target)
	if err != nil {
		return nil, fmt.Errorf("the streaming URL of the runtime: %w", err)
	}
	executor, err := remotecommand.NewSPDYExecutor(&rest.Config{
		Host: u.Host,
		// The runtime makes itself a certificate that nobody could check, and its
		// URL, good for one use, came over the root-only socket.
		TLSClientConfig: rest.TLSClientConfig{Insecure: u.Scheme == "https"},
		// The server is on this node: never through a proxy of the environment.
		Proxy: func(*http.Request) (*url.URL, error) { return nil, nil },
	}, http.MethodPost, u)
	if err != nil {
		return nil, fmt.Errorf("the streaming server of the runtime: %w", err)
	}
	return executor, nil
}
