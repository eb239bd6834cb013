package volumes

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"berth/agent/plan"
	"berth/podspec"
	"berth/volumes/content"
)

// Options configure Volumes.
type Options struct {
	RootDir    string // absolute; pods lie in RootDir/pods
	PodLogsDir string // absolute
	NodeName   string
	HostIPs    []string
	HostsFile  string // the host's own hosts file, for pods on the host network; empty: /etc/hosts

	// Allocatable is what pods may use of the node: it bounds memory volumes
	// and answers resourceFieldRef. Nil: unknown.
	Allocatable func() corev1.ResourceList
	// Hostname gives a pod's host name and domain for its /etc/hosts. Nil: the
	// name in the spec or the pod's name, no domain.
	Hostname func(pod *corev1.Pod) (hostname, domain string)
	// Env gives a container's environment for subPathExpr. It is asked only
	// when one is used. Nil: there is no environment.
	Env func(ctx context.Context, pod *corev1.Pod, c *corev1.Container, objs plan.Objects, sandbox plan.Sandbox) (func(name string) (string, bool), error)
	// RecursiveReadOnly reports whether the runtime can make a mount read-only
	// with all below it for this pod's runtime class. Nil: it cannot.
	RecursiveReadOnly func(pod *corev1.Pod) bool
}

// Volumes keeps pods' directories and volumes on the host. It may be used by
// many goroutines at once.
type Volumes struct {
	Options
	boot string // boot ID: what was set up before the last boot is to be set up again
}

// New makes the two directories and checks that the kernel can tell mount
// points.
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
		return nil, fmt.Errorf("volumes: read the boot ID: %w", err)
	}
	v := &Volumes{Options: opts, boot: string(bytes.TrimSpace(boot))}
	if err := errors.Join(
		os.MkdirAll(opts.RootDir, 0o750),
		os.MkdirAll(v.podsDir(), 0o750),
		os.MkdirAll(opts.PodLogsDir, 0o755),
	); err != nil {
		return nil, fmt.Errorf("volumes: %w", err)
	}
	var st unix.Statx_t
	err = unix.Statx(unix.AT_FDCWD, opts.RootDir, 0, unix.STATX_TYPE, &st)
	if err != nil || st.Attributes_mask&unix.STATX_ATTR_MOUNT_ROOT == 0 {
		return nil, fmt.Errorf("volumes: the kernel cannot tell mount points at %s (Linux 5.8 or newer is needed): %w", opts.RootDir, errors.Join(err, errors.ErrUnsupported))
	}
	return v, nil
}

// Mount sets a volume of the pod up on the host, with content of the given
// version where it has content. A volume that is set up with that version is
// left alone. Errors are *plan.Error with reason FailedMount.
func (v *Volumes) Mount(ctx context.Context, pod *corev1.Pod, name, version string, objs plan.Objects, podIPs []string) error {
	if err := v.mount(ctx, pod, name, version, objs, podIPs); err != nil {
		return failed("FailedMount", err) // the event names the volume
	}
	return nil
}

// Project replaces the content of a volume that is set up, atomically; one
// that is not set up is set up. Errors as with Mount; the old content stays
// readable then.
func (v *Volumes) Project(ctx context.Context, pod *corev1.Pod, name, version string, objs plan.Objects, podIPs []string) error {
	return v.Mount(ctx, pod, name, version, objs, podIPs)
}

func (v *Volumes) mount(ctx context.Context, pod *corev1.Pod, name, version string, objs plan.Objects, podIPs []string) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := checkNames(string(pod.UID), name); err != nil {
		return err
	}
	vol := volumeOf(pod, name)
	if vol == nil {
		return invalid("the pod has no such volume")
	}
	k, err := kindOf(vol)
	if err != nil {
		return err
	}
	seen, ok := v.setUp(pod.UID, k, name)
	if ok && seen.Version == version {
		return nil
	}
	m := marker{Version: version, Boot: v.boot}
	switch {
	case ok && k == emptyDir:
		m.Mounted = seen.Mounted // in use: its mode and owners are the pod's now
	case k == emptyDir:
		m.Mounted, err = v.mountEmptyDir(ctx, pod, vol)
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

// mountContent sets up a volume whose files come from elsewhere. Everything
// that may hold a secret lies on tmpfs.
func (v *Volumes) mountContent(ctx context.Context, pod *corev1.Pod, vol *corev1.Volume, k kind, objs plan.Objects, podIPs []string) (mounted bool, err error) {
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
