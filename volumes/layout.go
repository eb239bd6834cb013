package volumes

import (
	"fmt"
	"path/filepath"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"berth/agent/plan"
)

// kind is a type of volume, with the name that is used in paths.
type kind string

const (
	emptyDir    kind = "empty-dir"
	hostPath    kind = "host-path"
	configMap   kind = "configmap"
	secret      kind = "secret"
	downwardAPI kind = "downward-api"
	projected   kind = "projected"
	csi         kind = "csi"
)

// kinds lists all kinds.
var kinds = []kind{emptyDir, hostPath, configMap, secret, downwardAPI, projected, csi}

const (
	kindPrefix   = "kubernetes.io~"
	trashPrefix  = ".trash-"
	volumesDir   = "volumes"
	devicesDir   = "volumeDevices"
	pluginsDir   = "plugins"
	subPathsDir  = "volume-subpaths"
	containerDir = "containers"
	trashDir     = ".trash"
	hostsName    = "etc-hosts"
	markerName   = "ready"
)

func kindOf(vol *corev1.Volume) (kind, error) {
	switch src := vol.VolumeSource; {
	case src.EmptyDir != nil:
		return emptyDir, nil
	case src.HostPath != nil:
		return hostPath, nil
	case src.ConfigMap != nil:
		return configMap, nil
	case src.Secret != nil:
		return secret, nil
	case src.DownwardAPI != nil:
		return downwardAPI, nil
	case src.Projected != nil:
		return projected, nil
	case src.CSI != nil:
		return csi, nil
	}
	return "", &plan.Error{Kind: plan.Unsupported, Err: fmt.Errorf(
		"volume %q: only emptyDir, hostPath, configMap, secret, downwardAPI, projected and csi volumes and claims of "+
			"hostPath, local and csi volumes are supported on this node",
		vol.Name,
	)}
}

// projects reports whether the content comes from outside the pod. Containers mount such volumes
// read-only.
func (k kind) projects() bool {
	return k == configMap || k == secret || k == downwardAPI || k == projected
}

func (k kind) dirName() string { return kindPrefix + string(k) }

func (v *Volumes) podsDir() string             { return filepath.Join(v.RootDir, "pods") }
func (v *Volumes) podDir(uid types.UID) string { return filepath.Join(v.podsDir(), string(uid)) }
func (v *Volumes) podTrash(uid types.UID) string {
	return filepath.Join(v.podsDir(), trashPrefix+string(uid))
}
func (v *Volumes) hostsPath(uid types.UID) string { return filepath.Join(v.podDir(uid), hostsName) }

func (v *Volumes) volumeDir(uid types.UID, k kind, name string) string {
	return filepath.Join(v.podDir(uid), volumesDir, k.dirName(), name)
}

func (v *Volumes) markerDir(uid types.UID, k kind, name string) string {
	return filepath.Join(v.podDir(uid), pluginsDir, k.dirName(), name)
}

func (v *Volumes) containerDir(uid types.UID, container string) string {
	return filepath.Join(v.podDir(uid), containerDir, container)
}

// LogDir returns the directory of the pod's logs.
func (v *Volumes) LogDir(pod *corev1.Pod) string {
	return filepath.Join(v.PodLogsDir, pod.Namespace+"_"+pod.Name+"_"+string(pod.UID))
}

// checkNames rejects names that are not a single path component. Names with a leading dot are
// reserved for this package.
func checkNames(names ...string) error {
	for _, n := range names {
		if n == "" || n[0] == '.' || len(n) > 255 || strings.ContainsAny(n, "/\x00") {
			return invalid("name %q cannot be used as a directory name", n)
		}
	}
	return nil
}
