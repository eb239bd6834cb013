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

// socketName is where plugins register, in the directory of sockets.
const socketName = "kubelet.sock"

// Run serves registrations until ctx ends, and returns when nothing of it runs
// any more. A socket that cannot be made is tried again: the node runs pods
// without devices meanwhile.
func (d *Manager) Run(ctx context.Context) error {
	d.mu.Lock()
	d.serving = ctx
	d.mu.Unlock()
	d.wg.Go(func() { d.tell(ctx) })
	defer d.wg.Wait()
	for ctx.Err() == nil {
		err := d.serve(ctx)
		if ctx.Err() != nil {
			return nil
		}
		d.mu.Lock()
		if d.down == nil {
			d.opt.Log.Error("no device plugin can register", "err", err)
		}
		d.up, d.down = false, err
		d.mu.Unlock()
		select {
		case <-ctx.Done():
		case <-time.After(d.opt.RetryInterval):
		}
	}
	return nil
}

// tell rings when something has changed, and lets go of resources whose plugin
// has not come back since the agent began.
func (d *Manager) tell(ctx context.Context) {
	absent := time.NewTimer(d.opt.PluginGracePeriod)
	defer absent.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-d.bell:
			d.opt.OnChange()
		case <-absent.C:
			d.mu.Lock()
			for _, r := range d.resources {
				r.forgotten = r.forgotten || r.plugin == nil
			}
			d.note()
			d.mu.Unlock()
		}
	}
}

// serve is one life of the socket. Those that plugins have left are removed
// before: that is how plugins learn that they have to register again.
func (d *Manager) serve(ctx context.Context) error {
	if err := os.MkdirAll(d.opt.Dir, 0o750); err != nil {
		return fmt.Errorf("directory of device plugins: %w", err)
	}
	if err := removeSockets(d.opt.Dir); err != nil {
		return fmt.Errorf("sockets of device plugins: %w", err)
	}
	at, err := openDir(d.opt.Dir)
	if err != nil {
		return fmt.Errorf("directory of device plugins: %w", err)
	}
	defer at.Close()
	ln, err := new(net.ListenConfig).Listen(ctx, "unix", at.socket(socketName))
	if err != nil {
		return fmt.Errorf("socket of device plugins: %w", err)
	}
	server := grpc.NewServer()
	pluginapi.RegisterRegistrationServer(server, &registration{d: d})
	d.mu.Lock()
	d.up, d.down = true, nil
	d.mu.Unlock()
	d.ring()
	stop := context.AfterFunc(ctx, server.Stop)
	defer stop()
	return server.Serve(ln)
}

// removeSockets removes what plugins and an earlier agent have left; folders and
// files are others' matter.
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

// directory is an open folder whose sockets can be reached whatever the length
// of its path: the kernel takes 107 bytes.
type directory struct {
	*os.File
	path string
}

func openDir(path string) (*directory, error) {
	f, err := os.Open(path)
	return &directory{f, path}, err
}

const longestSocket = 107

func (at *directory) socket(name string) string {
	path := filepath.Join(at.path, name)
	if len(path) <= longestSocket {
		return path
	}
	return filepath.Join("/proc/self/fd", strconv.Itoa(int(at.Fd())), name)
}

// registration is the API that plugins call.
type registration struct {
	pluginapi.UnimplementedRegistrationServer
	d *Manager
}

// Register takes in a plugin. It does not wait for its list.
func (r *registration) Register(_ context.Context, q *pluginapi.RegisterRequest) (*pluginapi.Empty, error) {
	if err := judge(q); err != nil {
		r.d.opt.Log.Warn("a device plugin is refused", "resource", q.GetResourceName(), "err", err)
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	r.d.opt.OnRegister(q.GetResourceName())
	if !r.d.begin(q) {
		return nil, status.Error(codes.Unavailable, "the agent is leaving")
	}
	return &pluginapi.Empty{}, nil
}

// judge refuses what cannot be followed, in upstream's words.
func judge(q *pluginapi.RegisterRequest) error {
	if !slices.Contains(pluginapi.SupportedVersions[:], q.GetVersion()) {
		return fmt.Errorf("requested API version %q is not supported by kubelet. Supported version is %q", q.GetVersion(), pluginapi.SupportedVersions)
	}
	name := q.GetResourceName()
	if bad := validation.IsQualifiedName(name); len(bad) > 0 || !podspec.IsExtended(corev1.ResourceName(name)) {
		return fmt.Errorf("the ResourceName %q is invalid", name)
	}
	if e := q.GetEndpoint(); !filepath.IsLocal(e) || e == "." || filepath.Clean(e) == socketName || strings.ContainsRune(e, 0) {
		return fmt.Errorf("the endpoint %q is no name of a socket in the directory of device plugins", e)
	}
	return nil
}
