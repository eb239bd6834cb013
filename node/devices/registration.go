package devices

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"berth/podspec"
)

// socketName is the name of the registration socket in the socket directory.
const socketName = "kubelet.sock"

// Run serves registrations until ctx ends, and returns when all its goroutines have ended. If the
// socket cannot be created, it retries, and the node runs pods without devices meanwhile.
func (d *Manager) Run(ctx context.Context) error {
	d.mu.Lock()
	d.serving = ctx
	d.mu.Unlock()
	d.wg.Go(func() { d.notifyChanges(ctx) })
	defer d.wg.Wait()
	for ctx.Err() == nil {
		err := d.serve(ctx)
		if ctx.Err() != nil {
			return nil
		}
		d.mu.Lock()
		if d.registrationErr == nil {
			d.opt.Log.Error("device plugin registration unavailable; retrying", "err", err)
		}
		d.registering, d.registrationErr = false, err
		d.mu.Unlock()
		select {
		case <-ctx.Done():
		case <-time.After(d.opt.RetryInterval):
		}
	}
	return nil
}

// notifyChanges calls OnChange after changes, and lets the resources of the checkpoint expire whose
// plugin has not registered within the grace period.
func (d *Manager) notifyChanges(ctx context.Context) {
	absent := time.NewTimer(d.opt.PluginGracePeriod)
	defer absent.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-d.changed:
			d.opt.OnChange()
		case <-absent.C:
			d.mu.Lock()
			for _, r := range d.resources {
				r.expired = r.expired || r.plugin == nil
			}
			d.save()
			d.mu.Unlock()
		}
	}
}

// errServed reports that another process, such as a kubelet, serves the registration socket.
var errServed = errors.New("another process serves the device plugin socket")

// serve creates and serves the socket. It first removes the sockets of plugins, which tells them to
// register again. While another process serves the socket, the directory belongs to it, and serve
// changes nothing.
func (d *Manager) serve(ctx context.Context) error {
	if err := os.MkdirAll(d.opt.Dir, 0o750); err != nil {
		return fmt.Errorf("device plugin directory: %w", err)
	}
	at, err := openDir(d.opt.Dir)
	if err != nil {
		return fmt.Errorf("device plugin directory: %w", err)
	}
	defer at.Close()
	if conn, err := new(net.Dialer).DialContext(ctx, "unix", at.socket(socketName)); err == nil {
		return errors.Join(errServed, conn.Close())
	}
	if err := removeSockets(d.opt.Dir); err != nil {
		return fmt.Errorf("remove device plugin sockets: %w", err)
	}
	ln, err := new(net.ListenConfig).Listen(ctx, "unix", at.socket(socketName))
	if err != nil {
		return fmt.Errorf("listen on device plugin socket: %w", err)
	}
	server := grpc.NewServer()
	pluginapi.RegisterRegistrationServer(server, &registration{d: d})
	d.mu.Lock()
	d.registering, d.registrationErr = true, nil
	d.mu.Unlock()
	d.notify()
	stop := context.AfterFunc(ctx, server.Stop)
	defer stop()
	return server.Serve(ln)
}

// removeSockets removes the sockets of plugins and of an earlier agent. Directories and other files
// are kept.
func removeSockets(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if e.Type()&os.ModeSocket == 0 {
			continue
		}
		if err := os.Remove(filepath.Join(dir, e.Name())); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	return nil
}

// directory is an open directory whose sockets can be used even if their path exceeds the kernel's
// limit of 107 bytes.
type directory struct {
	*os.File
	path string
}

func openDir(path string) (*directory, error) {
	f, err := os.Open(path)
	return &directory{f, path}, err
}

const maxSocketPath = 107

func (at *directory) socket(name string) string {
	path := filepath.Join(at.path, name)
	if len(path) <= maxSocketPath {
		return path
	}
	return filepath.Join("/proc/self/fd", strconv.Itoa(int(at.Fd())), name)
}

// registration implements the registration API.
type registration struct {
	pluginapi.UnimplementedRegistrationServer
	d *Manager
}

// Register accepts a plugin. It does not wait for the device list.
func (r *registration) Register(_ context.Context, q *pluginapi.RegisterRequest) (*pluginapi.Empty, error) {
	if err := validateRegistration(q); err != nil {
		r.d.opt.Log.Warn("device plugin registration rejected", "resourceName", q.GetResourceName(), "err", err)
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	r.d.opt.OnRegister(q.GetResourceName())
	if !r.d.connect(q) {
		return nil, status.Error(codes.Unavailable, "the agent is shutting down")
	}
	return &pluginapi.Empty{}, nil
}

// validateRegistration validates a registration with upstream's messages.
func validateRegistration(q *pluginapi.RegisterRequest) error {
	if !slices.Contains(pluginapi.SupportedVersions[:], q.GetVersion()) {
		return fmt.Errorf(
			"requested API version %q is not supported by kubelet. Supported version is %q",
			q.GetVersion(),
			pluginapi.SupportedVersions,
		)
	}
	name := q.GetResourceName()
	if bad := validation.IsQualifiedName(name); len(bad) > 0 || !podspec.IsExtended(corev1.ResourceName(name)) {
		return fmt.Errorf("the ResourceName %q is invalid", name)
	}
	if e := q.GetEndpoint(); !filepath.IsLocal(e) || e == "." || filepath.Clean(e) == socketName ||
		strings.ContainsRune(e, 0) {
		return fmt.Errorf("the endpoint %q is not the name of a socket in the device plugin directory", e)
	}
	return nil
}
