package podspec

import (
	"math"
	"reflect"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

const (
	maxFileMode     = 0o777
	maxEmptyDirMode = 0o1777
)

// volumes validates the volumes of the pod.
func (k *validator) volumes(at *field.Path) {
	names := map[string]bool{}
	for i := range k.spec.Volumes {
		v, path := &k.spec.Volumes[i], at.Index(i)
		k.name(path.Child("name"), v.Name, validation.IsDNS1123Label)
		if v.Name != "" && names[v.Name] {
			k.duplicate(path.Child("name"), v.Name)
		}
		names[v.Name] = true
		switch kinds := volumeKinds(&v.VolumeSource); len(kinds) {
		case 0:
			k.required(path, "must specify a volume type")
		case 1:
			if v.Ephemeral != nil {
				k.ephemeral(path, v)
			}
			k.volumeSource(path.Child(kinds[0]), &v.VolumeSource)
		default:
			k.forbidden(path.Child(kinds[1]), "may not specify more than 1 volume type")
		}
	}
}

// ValidateVolumeSource returns every error of the source of a volume. at is the path of the field that is set.
func ValidateVolumeSource(at *field.Path, v *corev1.VolumeSource) field.ErrorList {
	k := &validator{}
	k.volumeSource(at, v)
	return k.errs
}

// volumeSource validates the source of a volume.
func (k *validator) volumeSource(at *field.Path, v *corev1.VolumeSource) {
	switch {
	case v.HostPath != nil:
		k.hostPath(at, v.HostPath)
	case v.EmptyDir != nil:
		k.emptyDir(at, v.EmptyDir)
	case v.ConfigMap != nil:
		k.reference(at.Child("name"), v.ConfigMap.Name)
		k.mode(at.Child("defaultMode"), v.ConfigMap.DefaultMode)
		k.owner(at.Child("defaultUser"), v.ConfigMap.DefaultUser)
		k.items(at.Child("items"), v.ConfigMap.Items)
	case v.Secret != nil:
		k.reference(at.Child("secretName"), v.Secret.SecretName)
		k.mode(at.Child("defaultMode"), v.Secret.DefaultMode)
		k.owner(at.Child("defaultUser"), v.Secret.DefaultUser)
		k.items(at.Child("items"), v.Secret.Items)
	case v.DownwardAPI != nil:
		k.mode(at.Child("defaultMode"), v.DownwardAPI.DefaultMode)
		k.owner(at.Child("defaultUser"), v.DownwardAPI.DefaultUser)
		k.downwardFiles(at.Child("items"), v.DownwardAPI.Items)
	case v.Projected != nil:
		k.projected(at, v.Projected)
	case v.PersistentVolumeClaim != nil:
		k.reference(at.Child("claimName"), v.PersistentVolumeClaim.ClaimName)
	case v.CSI != nil:
		k.name(at.Child("driver"), strings.ToLower(v.CSI.Driver), validation.IsDNS1123Subdomain)
	case v.NFS != nil:
		if v.NFS.Server == "" {
			k.required(at.Child("server"), "")
		}
		if v.NFS.Path == "" {
			k.required(at.Child("path"), "")
		} else if !strings.HasPrefix(v.NFS.Path, "/") {
			k.invalid(at.Child("path"), v.NFS.Path, "must be an absolute path")
		}
	case v.Image != nil:
		if v.Image.Reference == "" {
			k.required(at.Child("reference"), "")
		}
		oneOf(
			k,
			at.Child("pullPolicy"),
			v.Image.PullPolicy,
			corev1.PullAlways,
			corev1.PullIfNotPresent,
			corev1.PullNever,
		)
	default:
		k.remoteVolume(at, v)
	}
}

func (k *validator) hostPath(at *field.Path, v *corev1.HostPathVolumeSource) {
	if v.Path == "" {
		k.required(at.Child("path"), "")
	} else if hasBacksteps(v.Path) {
		k.invalid(at.Child("path"), v.Path, "must not contain '..'")
	}
	oneOfIfSet(k, at.Child("type"), v.Type, corev1.HostPathUnset, corev1.HostPathDirectoryOrCreate,
		corev1.HostPathDirectory, corev1.HostPathFileOrCreate, corev1.HostPathFile,
		corev1.HostPathSocket, corev1.HostPathCharDev, corev1.HostPathBlockDev)
}

func (k *validator) emptyDir(at *field.Path, v *corev1.EmptyDirVolumeSource) {
	if q := v.SizeLimit; q != nil && q.Sign() < 0 {
		k.invalid(at.Child("sizeLimit"), q.String(), "must be a valid resource quantity that is not negative")
	}
	if m := v.Mode; m != nil && (*m < 0 || *m > maxEmptyDirMode) {
		k.invalid(at.Child("mode"), *m, "must be a number between 0 and 01777 (octal), both inclusive")
	}
	switch size, huge := strings.CutPrefix(string(v.Medium), string(corev1.StorageMediumHugePagesPrefix)); {
	case v.Medium == corev1.StorageMediumDefault,
		v.Medium == corev1.StorageMediumMemory,
		v.Medium == corev1.StorageMediumHugePages:
	case huge:
		if q, err := resource.ParseQuantity(size); err != nil || q.Sign() <= 0 {
			k.invalid(at.Child("medium"), v.Medium, "the size of the pages must be a positive quantity")
		}
	default:
		k.add(field.NotSupported(at.Child("medium"), v.Medium,
			[]corev1.StorageMedium{corev1.StorageMediumMemory, corev1.StorageMediumHugePages}))
	}
}

// mode validates the mode of a file.
func (k *validator) mode(at *field.Path, mode *int32) {
	if mode != nil && (*mode < 0 || *mode > maxFileMode) {
		k.invalid(at, *mode, "must be a number between 0 and 0777 (octal), both inclusive")
	}
}

// owner validates the owner of a file.
func (k *validator) owner(at *field.Path, uid *int64) {
	if uid != nil {
		k.each(at, *uid, validation.IsValidUserID(*uid))
	}
}

func (k *validator) items(at *field.Path, items []corev1.KeyToPath) {
	for i, item := range items {
		path := at.Index(i)
		if item.Key == "" {
			k.required(path.Child("key"), "")
		}
		k.relativePath(path.Child("path"), item.Path)
		k.mode(path.Child("mode"), item.Mode)
		k.owner(path.Child("user"), item.User)
	}
}

func (k *validator) downwardFiles(at *field.Path, items []corev1.DownwardAPIVolumeFile) {
	for i, item := range items {
		path := at.Index(i)
		k.relativePath(path.Child("path"), item.Path)
		k.mode(path.Child("mode"), item.Mode)
		k.owner(path.Child("user"), item.User)
		if !k.exactlyOne(
			path,
			item.Path,
			"`fieldRef`, `resourceFieldRef`",
			item.FieldRef != nil,
			item.ResourceFieldRef != nil,
		) {
			continue
		}
		if item.FieldRef != nil {
			k.fieldRef(path.Child("fieldRef"), item.FieldRef, fileFields)
		} else {
			k.resourceFieldRef(path.Child("resourceFieldRef"), item.ResourceFieldRef, true)
		}
	}
}

// projected validates a projected volume. Two sources cannot write the same file.
func (k *validator) projected(at *field.Path, v *corev1.ProjectedVolumeSource) {
	k.mode(at.Child("defaultMode"), v.DefaultMode)
	k.owner(at.Child("defaultUser"), v.DefaultUser)
	paths := map[string]bool{}
	file := func(at *field.Path, p string) {
		if p != "" && paths[p] {
			k.invalid(at, p, "conflicting duplicate paths")
		}
		paths[p] = true
	}
	for i := range v.Sources {
		s, where := &v.Sources[i], at.Child("sources").Index(i)
		if !k.exactlyOne(
			where,
			i,
			"`secret`, `configMap`, `downwardAPI`, `serviceAccountToken`, `clusterTrustBundle`, `podCertificate`",
			s.Secret != nil,
			s.ConfigMap != nil,
			s.DownwardAPI != nil,
			s.ServiceAccountToken != nil,
			s.ClusterTrustBundle != nil,
			s.PodCertificate != nil,
		) {
			continue
		}
		k.projection(where, s, file)
	}
}

func (k *validator) projection(at *field.Path, s *corev1.VolumeProjection, file func(*field.Path, string)) {
	keyed := func(at *field.Path, name string, items []corev1.KeyToPath) {
		k.reference(at.Child("name"), name)
		k.items(at.Child("items"), items)
		for i, item := range items {
			file(at.Child("items").Index(i).Child("path"), item.Path)
		}
	}
	switch {
	case s.Secret != nil:
		keyed(at.Child("secret"), s.Secret.Name, s.Secret.Items)
	case s.ConfigMap != nil:
		keyed(at.Child("configMap"), s.ConfigMap.Name, s.ConfigMap.Items)
	case s.DownwardAPI != nil:
		items := at.Child("downwardAPI", "items")
		k.downwardFiles(items, s.DownwardAPI.Items)
		for i, item := range s.DownwardAPI.Items {
			file(items.Index(i).Child("path"), item.Path)
		}
	case s.ServiceAccountToken != nil:
		at = at.Child("serviceAccountToken")
		k.relativePath(at.Child("path"), s.ServiceAccountToken.Path)
		file(at.Child("path"), s.ServiceAccountToken.Path)
		k.owner(at.Child("user"), s.ServiceAccountToken.User)
		if e := s.ServiceAccountToken.ExpirationSeconds; e != nil {
			k.between(at.Child("expirationSeconds"), *e, 600, math.MaxUint32+1)
		}
	case s.ClusterTrustBundle != nil:
		at = at.Child("clusterTrustBundle")
		k.exactlyOne(
			at,
			"",
			"`name`, `signerName`",
			s.ClusterTrustBundle.Name != nil,
			s.ClusterTrustBundle.SignerName != nil,
		)
		if selector := s.ClusterTrustBundle.LabelSelector; selector != nil {
			if s.ClusterTrustBundle.Name != nil {
				k.invalid(at.Child("labelSelector"), field.OmitValueType{}, "must be unset if name is specified")
			}
			k.selector(at.Child("labelSelector"), selector)
		}
		k.relativePath(at.Child("path"), s.ClusterTrustBundle.Path)
		file(at.Child("path"), s.ClusterTrustBundle.Path)
		k.owner(at.Child("user"), s.ClusterTrustBundle.User)
	case s.PodCertificate != nil:
		k.podCertificate(at.Child("podCertificate"), s.PodCertificate, file)
	}
}

func (k *validator) podCertificate(
	at *field.Path,
	p *corev1.PodCertificateProjection,
	file func(*field.Path, string),
) {
	if p.SignerName == "" {
		k.required(at.Child("signerName"), "")
	}
	oneOf(k, at.Child("keyType"), p.KeyType, "RSA3072", "RSA4096", "ECDSAP256", "ECDSAP384", "ECDSAP521", "ED25519")
	if m := p.MaxExpirationSeconds; m != nil {
		k.between(at.Child("maxExpirationSeconds"), int64(*m), 3600, 7862400)
	}
	k.owner(at.Child("user"), p.User)
	written := 0
	for _, f := range []struct{ name, path string }{
		{"credentialBundlePath", p.CredentialBundlePath}, {"keyPath", p.KeyPath},
		{"certificateChainPath", p.CertificateChainPath},
	} {
		if f.path != "" {
			written++
			k.relativePath(at.Child(f.name), f.path)
			file(at.Child(f.name), f.path)
		}
	}
	if written == 0 {
		k.required(at, "specify at least one of credentialBundlePath, keyPath and certificateChainPath")
	}
}

// volumeKinds returns the names of the sources that are set in a volume, as in a manifest. A valid
// volume has one.
func volumeKinds(v *corev1.VolumeSource) []string {
	var out []string
	value := reflect.ValueOf(*v)
	for i := range value.NumField() {
		if f := value.Field(i); f.Kind() == reflect.Pointer && !f.IsNil() {
			name, _, _ := strings.Cut(value.Type().Field(i).Tag.Get("json"), ",")
			out = append(out, name)
		}
	}
	return out
}
