package plugins

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

const (
	infoTimeout     = 10 * time.Second // of connecting and GetInfo
	registerTimeout = 3 * time.Minute  // of a handler
	notifyTimeout   = 5 * time.Second
)

// registration is what a plugin reports of itself.
type registration struct{ Type, Name, Endpoint string }

// announce registers the plugin of a socket and sends it the result.
func (w *Watcher) announce(ctx context.Context, path string) (registration, error) {
	conn, err := Connect(path)
	if err != nil {
		return registration{}, err
	}
	defer func() { _ = conn.Close() }() // no more requests
	client := registerapi.NewRegistrationClient(conn)
	short, cancel := context.WithTimeout(ctx, infoTimeout)
	defer cancel()
	info, err := client.GetInfo(short, &registerapi.InfoRequest{}, grpc.WaitForReady(true))
	if err != nil {
		return registration{}, fmt.Errorf("get plugin info: %w", err)
	}
	r := registration{info.GetType(), info.GetName(), cmp.Or(info.GetEndpoint(), path)}
	registered := w.callHandler(ctx, r, info.GetSupportedVersions())
	status := &registerapi.RegistrationStatus{PluginRegistered: registered == nil}
	if registered != nil {
		status.Error = "plugin registration failed: " + registered.Error()
	}
	short, cancel = context.WithTimeout(ctx, notifyTimeout)
	defer cancel()
	_, err = client.NotifyRegistrationStatus(short, status)
	switch {
	case registered != nil:
		return r, registered
	case err != nil:
		w.opt.Handlers[r.Type].Deregister(r.Name, r.Endpoint)
		return r, fmt.Errorf("notify plugin of its registration: %w", err)
	}
	return r, nil
}

func (w *Watcher) callHandler(ctx context.Context, r registration, versions []string) error {
	handler, ok := w.opt.Handlers[r.Type]
	switch {
	case !ok:
		return fmt.Errorf("no handler registered for plugin type: %s", r.Type)
	case r.Name == "":
		return fmt.Errorf("plugin of type %s has no name", r.Type)
	}
	ctx, cancel := context.WithTimeout(ctx, registerTimeout)
	defer cancel()
	return handler.Register(ctx, r.Name, r.Endpoint, versions)
}

// Connect returns a connection to a gRPC server on a Unix socket. It connects when it is used.
func Connect(path string, opts ...grpc.DialOption) (*grpc.ClientConn, error) {
	return grpc.NewClient("passthrough:///"+path, append([]grpc.DialOption{
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithAuthority("localhost"), // servers may reject a path as authority
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return Dial(ctx, path) }),
	}, opts...)...)
}

const maxSocketPath = 107

// Dial connects to a Unix socket, even if its path exceeds the kernel's limit.
func Dial(ctx context.Context, path string) (net.Conn, error) {
	if len(path) <= maxSocketPath {
		return new(net.Dialer).DialContext(ctx, "unix", path)
	}
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	short := filepath.Join("/proc/self/fd", strconv.Itoa(int(dir.Fd())), filepath.Base(path))
	return new(net.Dialer).DialContext(ctx, "unix", short)
}
