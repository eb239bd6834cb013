package plan

import (
	"fmt"
	"hash/fnv"
	"maps"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"berth/podspec"
)

// configureHost plans what is missing on the host and reports whether everything that the pod's own
// containers need is present. The sandbox needs only the directories and the cgroup. Volumes are
// mounted in parallel with it.
func (d *decider) configureHost() bool {
	ok := true
	if !d.Observed.HasDirs {
		ok = false
		d.addConfigure(CreateDirs{})
	}
	if !d.Observed.HasCgroup {
		ok = false
		d.addConfigure(EnsureCgroup{d.allocated})
	}
	used := d.usedVolumes()
	for i := range d.Pod.Spec.Volumes {
		v := &d.Pod.Spec.Volumes[i]
		kind, mounted := used[v.Name]
		if !mounted || v.Image != nil || d.syncVolume(v) {
			continue
		}
		if kind == Ephemeral {
			d.missingVolumes = append(d.missingVolumes, v.Name)
			continue
		}
		ok = false
	}
	return ok
}

// syncVolume mounts a volume and keeps its content current. It reports whether the volume is
// mounted.
func (d *decider) syncVolume(v *corev1.Volume) bool {
	version, missing, pending := volumeContentVersion(v, d.Pod, d.Refs)
	status, exists := d.Observed.Volumes[v.Name]
	mounted := exists && !status.Incomplete
	switch {
	case mounted && (missing != "" || pending || status.Version == version):
		return true // a running pod keeps the content if the source is missing
	case missing != "":
		d.report(Reason{
			Code: "FailedMount", Target: v.Name, EventType: corev1.EventTypeWarning,
			Message: fmt.Sprintf("MountVolume.SetUp failed for volume %q : %s", v.Name, missing),
		})
		return false
	case pending, !d.Observed.HasDirs:
		return false
	case mounted:
		d.addConfigure(ProjectVolume{v.Name, version})
		return true // the old content remains available until it is replaced
	default:
		d.addConfigure(MountVolume{v.Name, version})
		return false
	}
}

// VolumeOf returns the volume that an action sets up, updates or unmounts, or "".
func VolumeOf(a Action) string {
	switch a := a.(type) {
	case MountVolume:
		return a.Volume
	case ProjectVolume:
		return a.Volume
	case UnmountVolume:
		return a.Volume
	}
	return ""
}

// usedVolumes returns the volumes that containers mount, with the kind of the first such container.
// A volume that no container mounts is not set up. One that only ephemeral containers mount delays
// only those.
func (d *decider) usedVolumes() map[string]ContainerKind {
	used := make(map[string]ContainerKind, len(d.Pod.Spec.Volumes))
	for _, c := range d.specs { // ephemeral containers come last
		for _, name := range c.volumes() {
			if _, known := used[name]; !known {
				used[name] = c.kind
			}
		}
	}
	return used
}

// volumes returns the names of the volumes that the container uses.
func (c spec) volumes() (names []string) {
	for _, m := range c.VolumeMounts {
		names = append(names, m.Name)
	}
	for _, m := range c.VolumeDevices {
		names = append(names, m.Name)
	}
	return names
}

// volumeContentVersion returns the version of the content that the volume should have, or "" for a
// volume without content. missing names required objects that do not exist. pending is set if an
// object is being fetched.
func volumeContentVersion(v *corev1.Volume, pod *corev1.Pod, refs map[Ref]Version) (version, missing string,
	pending bool) {
	c := contentVersion{pod: pod, refs: refs}
	switch {
	case v.ConfigMap != nil:
		c.object(Ref{ConfigMap, v.ConfigMap.Name}, v.ConfigMap.Optional)
	case v.Secret != nil:
		c.object(Ref{Secret, v.Secret.SecretName}, v.Secret.Optional)
	case v.DownwardAPI != nil:
		c.metadata()
	case v.PersistentVolumeClaim != nil, v.Ephemeral != nil:
		c.object(Ref{Claim, podspec.ClaimName(pod, v)}, nil)
	case v.Projected != nil:
		for i, s := range v.Projected.Sources {
			switch {
			case s.ConfigMap != nil:
				c.object(Ref{ConfigMap, s.ConfigMap.Name}, s.ConfigMap.Optional)
			case s.Secret != nil:
				c.object(Ref{Secret, s.Secret.Name}, s.Secret.Optional)
			case s.ServiceAccountToken != nil:
				c.object(Ref{ServiceAccountToken, podspec.TokenName(s.ServiceAccountToken)}, nil)
			case s.ClusterTrustBundle != nil:
				c.object(Ref{ClusterTrustBundle, podspec.TrustBundleName(s.ClusterTrustBundle)},
					s.ClusterTrustBundle.Optional)
			case s.PodCertificate != nil:
				c.object(Ref{PodCertificates, podspec.PodCertificateName(v.Name, i)}, nil)
			case s.DownwardAPI != nil:
				c.metadata()
			}
		}
	default:
		return "", "", false
	}
	return strings.Join(c.parts, " "), strings.Join(c.missing, ", "), c.pending
}

// contentVersion collects the parts of a content version.
type contentVersion struct {
	pod            *corev1.Pod
	refs           map[Ref]Version
	parts, missing []string
	pending        bool
}

func (c *contentVersion) object(r Ref, optional *bool) {
	v, known := c.refs[r]
	switch {
	case v.Pending:
		c.pending = true
	case v.Err != "":
		c.missing = append(c.missing, v.Err)
	case (!known || v.Missing) && (optional == nil || !*optional):
		c.missing = append(c.missing, r.notFound())
	case !known || v.Missing:
		c.parts = append(c.parts, "none")
	default:
		c.parts = append(c.parts, v.Version)
	}
}

// metadata adds a hash of everything that downward API files can show.
func (c *contentVersion) metadata() {
	h := fnv.New64a()
	for _, m := range []map[string]string{c.pod.Labels, c.pod.Annotations} {
		for _, k := range slices.Sorted(maps.Keys(m)) {
			h.Write([]byte(k + "\x00" + m[k] + "\x00"))
		}
		h.Write([]byte{1})
	}
	for _, list := range [][]corev1.Container{c.pod.Spec.InitContainers, c.pod.Spec.Containers} {
		for i := range list { // allocated resources can change without the spec
			for _, r := range []corev1.ResourceList{list[i].Resources.Requests, list[i].Resources.Limits} {
				for _, name := range slices.Sorted(maps.Keys(r)) {
					q := r[name]
					h.Write([]byte(string(name) + q.String()))
				}
			}
		}
	}
	c.parts = append(c.parts, strconv.FormatUint(h.Sum64(), 16))
}

// missingEnv returns the required objects of the container's environment that do not exist, or "".
// pending is set if an object is being fetched.
func (d *decider) missingEnv(c spec) (missing string, pending bool) {
	env := contentVersion{pod: d.Pod, refs: d.Refs}
	for i := range c.EnvFrom {
		switch f := &c.EnvFrom[i]; {
		case f.ConfigMapRef != nil:
			env.object(Ref{ConfigMap, f.ConfigMapRef.Name}, f.ConfigMapRef.Optional)
		case f.SecretRef != nil:
			env.object(Ref{Secret, f.SecretRef.Name}, f.SecretRef.Optional)
		}
	}
	for i := range c.Env {
		switch f := c.Env[i].ValueFrom; {
		case f == nil:
		case f.ConfigMapKeyRef != nil:
			env.object(Ref{ConfigMap, f.ConfigMapKeyRef.Name}, f.ConfigMapKeyRef.Optional)
		case f.SecretKeyRef != nil:
			env.object(Ref{Secret, f.SecretKeyRef.Name}, f.SecretKeyRef.Optional)
		}
	}
	for r, v := range d.Refs { // every container's environment includes the services
		env.pending = env.pending || r.Kind == Services && v.Pending
	}
	return strings.Join(slices.Compact(env.missing), ", "), env.pending
}
