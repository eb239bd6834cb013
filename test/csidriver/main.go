// Command csidriver is a CSI driver for tests, with the node service of csi-driver-host-path and the registration of
// node-driver-registrar: volumes are directories that are bind-mounted, file systems of a size in memory if they have
// the attribute "size", or image files with a loop device if they are raw block volumes.
//
//	csidriver ROOT NAME DATA
//
// ROOT is the root directory of the agent, DATA the directory of the volumes. A volume is created when it is staged,
// an inline volume when it is published, and removed when it is unpublished. The driver prints a line for each call.
// Lines on standard input change its behavior: "hang METHOD" lets calls wait, "fail METHOD TEXT" lets them fail, and
// "ok" ends both. At the end of its input the driver removes its sockets and exits.
package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "csidriver:", err)
		os.Exit(1)
	}
}

// driver implements the node service and the registration of a driver.
type driver struct {
	csipb.UnimplementedIdentityServer
	csipb.UnimplementedNodeServer
	registerapi.UnimplementedRegistrationServer
	name, endpoint, data string

	mu      sync.Mutex
	hang    map[string]bool
	fail    map[string]string
	devices map[string]*device // of raw block volumes that are staged, by handle
	changed chan struct{}      // closed and replaced on every change
}

func run(args []string) error {
	if len(args) != 3 {
		return errors.New("want ROOT NAME DATA")
	}
	root, name, data := args[0], args[1], args[2]
	d := &driver{name: name, data: data, endpoint: filepath.Join(root, "plugins", name, "csi.sock"),
		devices: map[string]*device{}}
	d.reset()
	node, err := serve(d.endpoint, d.logCalls, func(s *grpc.Server) {
		csipb.RegisterIdentityServer(s, d)
		csipb.RegisterNodeServer(s, d)
	})
	if err != nil {
		return err
	}
	registration := filepath.Join(root, "plugins_registry", name+"-reg.sock")
	registrar, err := serve(registration, nil, func(s *grpc.Server) { registerapi.RegisterRegistrationServer(s, d) })
	if err != nil {
		return err
	}
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		d.change(lines.Text())
	}
	registrar.Stop()
	node.Stop()
	return errors.Join(remove(registration), remove(d.endpoint))
}

// remove removes a file, if it exists.
func remove(path string) error {
	if err := os.Remove(path); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// serve serves on a Unix socket, whose path may be longer than the limit of the kernel.
func serve(path string, log grpc.UnaryServerInterceptor, register func(*grpc.Server)) (*grpc.Server, error) {
	dir := filepath.Dir(path)
	if err := errors.Join(os.MkdirAll(dir, 0o750), remove(path)); err != nil {
		return nil, err
	}
	at, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	defer at.Close()
	short := filepath.Join("/proc/self/fd", strconv.Itoa(int(at.Fd())), filepath.Base(path))
	ln, err := net.Listen("unix", short)
	if err != nil {
		return nil, err
	}
	ln.(*net.UnixListener).SetUnlinkOnClose(false) // the short path is invalid then
	var opts []grpc.ServerOption
	if log != nil {
		opts = append(opts, grpc.UnaryInterceptor(log))
	}
	s := grpc.NewServer(opts...)
	register(s)
	go func() { _ = s.Serve(ln) }()
	return s, nil
}

func (d *driver) reset() {
	d.hang, d.fail, d.changed = map[string]bool{}, map[string]string{}, make(chan struct{})
}

// change applies a line of input.
func (d *driver) change(line string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	close(d.changed)
	d.changed = make(chan struct{})
	verb, rest, _ := strings.Cut(line, " ")
	method, text, _ := strings.Cut(rest, " ")
	switch verb {
	case "hang":
		d.hang[method] = true
	case "fail":
		d.fail[method] = text
	case "ok":
		d.hang, d.fail = map[string]bool{}, map[string]string{}
	}
	fmt.Println("changed:", line)
}

// logCalls prints each call, and lets it hang or fail if requested.
func (d *driver) logCalls(
	ctx context.Context, q any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler,
) (any, error) {
	method := filepath.Base(info.FullMethod)
	volume := ""
	if v, ok := q.(interface{ GetVolumeId() string }); ok {
		volume = " " + v.GetVolumeId()
	}
	fmt.Println("call " + method + volume)
	for {
		d.mu.Lock()
		hang, text, changed := d.hang[method], d.fail[method], d.changed
		d.mu.Unlock()
		if text != "" {
			return nil, status.Error(codes.Internal, text)
		}
		if !hang {
			return handler(ctx, q)
		}
		select {
		case <-changed:
		case <-ctx.Done():
			fmt.Println("canceled " + method + volume)
			return nil, ctx.Err()
		}
	}
}

func (d *driver) GetInfo(context.Context, *registerapi.InfoRequest) (*registerapi.PluginInfo, error) {
	return &registerapi.PluginInfo{
		Type: registerapi.CSIPlugin, Name: d.name, Endpoint: d.endpoint, SupportedVersions: []string{"1.0.0"},
	}, nil
}

func (d *driver) NotifyRegistrationStatus(
	_ context.Context, q *registerapi.RegistrationStatus,
) (*registerapi.RegistrationStatusResponse, error) {
	fmt.Printf("registered %v %s\n", q.GetPluginRegistered(), q.GetError())
	return &registerapi.RegistrationStatusResponse{}, nil
}

func (d *driver) NodeGetInfo(context.Context, *csipb.NodeGetInfoRequest) (*csipb.NodeGetInfoResponse, error) {
	return &csipb.NodeGetInfoResponse{
		NodeId: "id-of-node", MaxVolumesPerNode: 7,
		AccessibleTopology: &csipb.Topology{Segments: map[string]string{"topology." + d.name + "/node": "id-of-node"}},
	}, nil
}

func (d *driver) NodeGetCapabilities(
	context.Context, *csipb.NodeGetCapabilitiesRequest,
) (*csipb.NodeGetCapabilitiesResponse, error) {
	out := &csipb.NodeGetCapabilitiesResponse{}
	for _, t := range []csipb.NodeServiceCapability_RPC_Type{
		csipb.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME, csipb.NodeServiceCapability_RPC_GET_VOLUME_STATS,
		csipb.NodeServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER, csipb.NodeServiceCapability_RPC_EXPAND_VOLUME,
	} {
		out.Capabilities = append(out.Capabilities, &csipb.NodeServiceCapability{Type: &csipb.NodeServiceCapability_Rpc{
			Rpc: &csipb.NodeServiceCapability_RPC{Type: t}}})
	}
	return out, nil
}

// bind mounts a directory at a target, unless it is mounted.
func bind(from, target string, readOnly bool) error {
	if mounted, err := isMounted(target); err != nil || mounted {
		return err
	}
	if err := os.MkdirAll(target, 0o750); err != nil {
		return err
	}
	if err := unix.Mount(from, target, "", unix.MS_BIND, ""); err != nil {
		return &os.PathError{Op: "mount", Path: target, Err: err}
	}
	if readOnly {
		return unix.Mount("", target, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, "")
	}
	return nil
}

// unbind unmounts a target.
func unbind(target string) error {
	mounted, err := isMounted(target)
	if err != nil || !mounted {
		return err
	}
	return unix.Unmount(target, unix.UMOUNT_NOFOLLOW)
}

func isMounted(path string) (bool, error) {
	var st unix.Statx_t
	err := unix.Statx(unix.AT_FDCWD, path, unix.AT_SYMLINK_NOFOLLOW, unix.STATX_TYPE, &st)
	if errors.Is(err, unix.ENOENT) {
		return false, nil
	}
	return st.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0, err
}

func (d *driver) NodeStageVolume(
	_ context.Context, q *csipb.NodeStageVolumeRequest,
) (*csipb.NodeStageVolumeResponse, error) {
	volume := filepath.Join(d.data, q.GetVolumeId())
	size, err := sizeOf(q.GetVolumeContext())
	if err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	switch {
	case q.GetVolumeCapability().GetBlock() != nil:
		err = errors.Join(os.MkdirAll(d.data, 0o755), d.attach(q.GetVolumeId(), size))
	case size > 0:
		err = mountTmpfs(q.GetStagingTargetPath(), size)
	default:
		if err = os.MkdirAll(volume, 0o755); err == nil {
			err = bind(volume, q.GetStagingTargetPath(), false)
		}
	}
	return &csipb.NodeStageVolumeResponse{}, err
}

func (d *driver) NodePublishVolume(
	_ context.Context, q *csipb.NodePublishVolumeRequest,
) (*csipb.NodePublishVolumeResponse, error) {
	from := q.GetStagingTargetPath()
	if q.GetVolumeContext()["csi.storage.k8s.io/ephemeral"] == "true" {
		from = filepath.Join(d.data, q.GetVolumeId())
		if err := os.MkdirAll(from, 0o755); err != nil {
			return nil, err
		}
		text := q.GetVolumeContext()["text"] + " for " + q.GetVolumeContext()["csi.storage.k8s.io/pod.name"] + "\n"
		if err := os.WriteFile(filepath.Join(from, "text"), []byte(text), 0o644); err != nil {
			return nil, err
		}
	}
	if from == "" {
		return nil, status.Error(codes.InvalidArgument, "no staging target path")
	}
	if q.GetVolumeCapability().GetBlock() != nil {
		return &csipb.NodePublishVolumeResponse{}, d.publishDevice(q.GetVolumeId(), q.GetTargetPath())
	}
	return &csipb.NodePublishVolumeResponse{}, bind(from, q.GetTargetPath(), q.GetReadonly())
}

func (d *driver) NodeUnpublishVolume(
	_ context.Context, q *csipb.NodeUnpublishVolumeRequest,
) (*csipb.NodeUnpublishVolumeResponse, error) {
	if err := errors.Join(unbind(q.GetTargetPath()), remove(q.GetTargetPath())); err != nil {
		return nil, err
	}
	if strings.HasPrefix(q.GetVolumeId(), "csi-") { // an inline volume
		if err := os.RemoveAll(filepath.Join(d.data, q.GetVolumeId())); err != nil {
			return nil, err
		}
	}
	return &csipb.NodeUnpublishVolumeResponse{}, nil
}

func (d *driver) NodeUnstageVolume(
	_ context.Context, q *csipb.NodeUnstageVolumeRequest,
) (*csipb.NodeUnstageVolumeResponse, error) {
	return &csipb.NodeUnstageVolumeResponse{}, errors.Join(unbind(q.GetStagingTargetPath()), d.detach(q.GetVolumeId()))
}

func (d *driver) NodeGetVolumeStats(
	_ context.Context, q *csipb.NodeGetVolumeStatsRequest,
) (*csipb.NodeGetVolumeStatsResponse, error) {
	return &csipb.NodeGetVolumeStatsResponse{Usage: []*csipb.VolumeUsage{
		{Unit: csipb.VolumeUsage_BYTES, Total: 1000, Used: 300, Available: 700},
		{Unit: csipb.VolumeUsage_INODES, Total: 100, Used: 3, Available: 97},
	}}, nil
}
