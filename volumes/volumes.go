package volumes

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"berth/agent/plan"
	"berth/podspec"
	"berth/volumes/content"
)

// Options configures Volumes.
type Options struct {
	RootDir    string // absolute; pods are in RootDir/pods
	PodLogsDir string // absolute
	NodeName   string
	HostIPs    []string
	HostsFile  string // hosts file of the host, for pods on the host network; default /etc/hosts

	// Allocatable returns the node's allocatable resources, which limit memory volumes and resolve
	// resourceFieldRef. Nil: unknown.
	Allocatable func() corev1.ResourceList
	// Hostname returns a pod's hostname and domain for its /etc/hosts. Nil: the hostname of the
	// spec or the pod name, without domain.
	Hostname func(pod *corev1.Pod) (hostname, domain string)
	// Env returns a container's environment for subPathExpr. Nil: empty.
	Env func(
		ctx context.Context, pod *corev1.Pod, c *corev1.Container, objs plan.Objects, sandbox plan.Sandbox,
	) (func(name string) (string, bool), error)
	// RecursiveReadOnly reports whether the runtime supports recursive read-only mounts for the
	// pod's runtime class. Nil: it does not.
	RecursiveReadOnly func(pod *corev1.Pod) bool
	// CSI sets up volumes by CSI drivers. Nil: it is not supported.
	CSI CSI
	// Claim records that berth creates the pod, and creates its directory with ClaimDir. It returns an
	// error if anything of the pod on the host is foreign. Nil: ClaimDir.
	Claim func(uid types.UID) error
}

// Volumes manages the directories and volumes of pods. It is safe for concurrent use.
type Volumes struct {
	Options
	boot   string     // boot ID: some volumes must be set up again after a reboot
	claims sync.Mutex // held while a pod directory is created or marked
}

// New creates the root directories and checks that the kernel can detect mount points.
func New(opts Options) (*Volumes, error) {
	if opts.HostsFile == "" {
		opts.HostsFile = "/etc/hosts"
	}
	for what, dir := range map[string]string{"root directory": opts.RootDir, "log directory of pods": opts.PodLogsDir} {
		if !filepath.IsAbs(dir) {
			return nil, fmt.Errorf("volumes: %s %q is not an absolute path", what, dir)
		}
	}
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return nil, fmt.Errorf("volumes: read boot ID: %w", err)
	}
	v := &Volumes{Options: opts, boot: string(bytes.TrimSpace(boot))}
	err = errors.Join(
		os.MkdirAll(opts.RootDir, 0o750), os.MkdirAll(v.podsDir(), 0o750), os.MkdirAll(opts.PodLogsDir, 0o755),
		v.removeUnfinished(),
	)
	if err != nil {
		return nil, fmt.Errorf("volumes: %w", err)
	}
	var st unix.Statx_t
	err = unix.Statx(unix.AT_FDCWD, opts.RootDir, 0, unix.STATX_TYPE, &st)
	if err != nil || st.Attributes_mask&unix.STATX_ATTR_MOUNT_ROOT == 0 {
		return nil, fmt.Errorf(
			"volumes: the kernel cannot detect mount points at %s (requires Linux 5.8): %w",
			opts.RootDir,
			errors.Join(err, errors.ErrUnsupported),
		)
	}
	return v, nil
}

// Mount sets up a volume of the pod with content of the given version. A volume with that version
// is left unchanged. Errors are *plan.Error with the reason FailedMount.
func (v *Volumes) Mount(
	ctx context.Context,
	pod *corev1.Pod,
	name, version string,
	objs plan.Objects,
	podIPs []string,
) error {
	if err := v.mount(ctx, pod, name, version, objs, podIPs); err != nil {
		return failed("FailedMount", err) // the event contains the volume name
	}
	return nil
}

// Project replaces the content of a volume atomically, or sets it up. After an error the old
// content remains readable. Errors are those of Mount.
func (v *Volumes) Project(
	ctx context.Context,
	pod *corev1.Pod,
	name, version string,
	objs plan.Objects,
	podIPs []string,
) error {
	return v.Mount(ctx, pod, name, version, objs, podIPs)
}

func (v *Volumes) mount(
	ctx context.Context,
	pod *corev1.Pod,
	name, version string,
	objs plan.Objects,
	podIPs []string,
) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := checkNames(string(pod.UID), name); err != nil {
		return err
	}
	if err := v.requireOwn(pod.UID); err != nil {
		return err
	}
	vol := volumeOf(pod, name)
	if vol == nil {
		return invalid("the pod has no such volume")
	}
	local, spec, bound := localPath(pod, vol, objs), vol, boundVolume(pod, vol, objs)
	if err := checkMode(pod, vol, isBlock(bound)); err != nil {
		return err
	}
	vol, err := resolveClaim(pod, vol, objs)
	if err != nil {
		return err
	}
	k, err := kindOf(vol)
	if err != nil {
		return err
	}
	recorded, ok := v.setUp(pod.UID, k, name)
	switch {
	case ok && recorded.Version == version:
		return nil
	case k == csi:
		return v.mountCSI(ctx, pod, spec, bound, version)
	}
	m := marker{Version: version, Boot: v.boot}
	switch {
	case ok && k == emptyDir:
		m.Mounted = recorded.Mounted // in use: the pod may have changed its mode and owners
	case k == emptyDir:
		m.Mounted, err = v.mountEmptyDir(ctx, pod, vol)
	case local != "" && isBlock(bound):
		err = setUpLocalDevice(local)
	case local != "":
		err = v.setUpLocal(ctx, pod, local)
	case k == hostPath:
		err = checkHostPath(vol.HostPath)
	default:
		m.Mounted, err = v.mountContent(ctx, pod, vol, k, objs, podIPs)
	}
	if err != nil {
		return err
	}
	return v.writeMarker(pod.UID, k, name, m)
}

// mountContent sets up a volume with content from outside the pod. Volumes that may contain secrets
// are on tmpfs.
func (v *Volumes) mountContent(
	ctx context.Context,
	pod *corev1.Pod,
	vol *corev1.Volume,
	k kind,
	objs plan.Objects,
	podIPs []string,
) (mounted bool, err error) {
	facts := podspec.RuntimeInfo{NodeName: v.NodeName, HostIPs: v.HostIPs, PodIPs: podIPs}
	files, err := content.Build(vol, content.Inputs{
		Objects: objs,
		Field:   func(path string) (string, error) { return podspec.FieldRef(pod, path, facts) },
		Resource: func(sel *corev1.ResourceFieldSelector) (string, error) {
			return podspec.ResourceRef(pod, nil, sel, v.allocatable())
		},
	})
	if err != nil {
		return false, err
	}
	dir := v.volumeDir(pod.UID, k, vol.Name)
	if err := os.MkdirAll(filepath.Dir(dir), 0o750); err != nil {
		return false, err
	}
	if err := makeDir(dir); err != nil {
		return false, err
	}
	mounted = k == secret || k == projected
	if mounted {
		if err := mountTmpfs(dir, 0); err != nil {
			return false, err
		}
	}
	w := atomicDir{path: dir, mode: 0o777, gid: fsGroup(pod), grace: readerGrace}
	_, err = w.write(ctx, files)
	return mounted, err
}

func (v *Volumes) allocatable() corev1.ResourceList {
	if v.Allocatable == nil {
		return nil
	}
	return v.Allocatable()
}

func volumeOf(pod *corev1.Pod, name string) *corev1.Volume {
	for i := range pod.Spec.Volumes {
		if pod.Spec.Volumes[i].Name == name {
			return &pod.Spec.Volumes[i]
		}
	}
	return nil
}

func fsGroup(pod *corev1.Pod) *int64 {
	if pod.Spec.SecurityContext == nil {
		return nil
	}
	return pod.Spec.SecurityContext.FSGroup
}

// failed wraps an error with its kind and the event reason. An existing kind is kept.
func failed(reason string, err error) error {
	kind := plan.KindOf(err)
	out := &plan.Error{Reason: reason, Err: err}
	if e, ok := errors.AsType[*plan.Error](err); ok && e.Operation != "" {
		out.Reason, out.Operation, out.Object = cmp.Or(e.Reason, reason), e.Operation, e.Object
	}
	switch {
	case kind != plan.Other:
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT):
		kind = plan.NoSpace
	case errors.Is(err, context.Canceled):
		kind = plan.Canceled
	case errors.Is(err, context.DeadlineExceeded):
		kind = plan.Timeout
	}
	out.Kind = kind
	return out
}

func invalid(format string, args ...any) error {
	return &plan.Error{Kind: plan.Invalid, Err: fmt.Errorf(format, args...)}
}
