package content

import (
	"fmt"
	"path"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"berth/agent/plan"
)

// File is one file of a volume.
type File struct {
	Data []byte
	Mode uint32 // permission bits, 0000 to 0777
	UID  *int64 // owner; nil: root
}

// Files are the files of a volume by path relative to its root.
type Files map[string]File

// Inputs are the inputs of Build.
type Inputs struct {
	Objects plan.Objects
	// Field and Resource resolve the references of downwardAPI items.
	Field    func(fieldPath string) (string, error)
	Resource func(sel *corev1.ResourceFieldSelector) (string, error)
}

// DefaultMode is the default mode of files.
const DefaultMode = 0o644

// Build returns the files of a configMap, secret, downwardAPI or projected volume. Errors are
// *plan.Error with the kind NotFound for a missing object or key, or Invalid for an invalid spec.
func Build(vol *corev1.Volume, in Inputs) (Files, error) {
	var b builder
	b.in = in
	var err error
	switch src := vol.VolumeSource; {
	case src.ConfigMap != nil:
		c := src.ConfigMap
		err = b.object(keyed{
			ref: plan.Ref{Kind: plan.ConfigMap, Name: c.Name}, items: c.Items, optional: c.Optional,
			defaults: defaults{mode: c.DefaultMode, uid: c.DefaultUser},
		})
	case src.Secret != nil:
		s := src.Secret
		err = b.object(keyed{
			ref: plan.Ref{Kind: plan.Secret, Name: s.SecretName}, items: s.Items, optional: s.Optional,
			defaults: defaults{mode: s.DefaultMode, uid: s.DefaultUser},
		})
	case src.DownwardAPI != nil:
		err = b.downward(src.DownwardAPI.Items, defaults{mode: src.DownwardAPI.DefaultMode,
			uid: src.DownwardAPI.DefaultUser})
	case src.Projected != nil:
		err = b.projected(vol.Name, src.Projected)
	default:
		err = invalid("volumes of this type have no content")
	}
	if err != nil {
		return nil, err
	}
	if err := b.checkTree(); err != nil {
		return nil, err
	}
	return b.files, nil
}

// builder collects the files of a volume.
type builder struct {
	in       Inputs
	files    Files
	explicit map[string]bool // paths set in the spec, as opposed to names of keys
}

// defaults are the defaults of an item.
type defaults struct {
	mode *int32
	uid  *int64
}

// add adds a file. Explicit paths must be unique. A path from a key is replaced by later sources,
// as documented for projected volumes.
func (b *builder) add(p string, f File, explicit bool) error {
	if err := checkPath(p); err != nil {
		return err
	}
	p = path.Clean(p)
	if explicit && b.explicit[p] {
		return invalid("path %q is used by more than one source", p)
	}
	if b.files == nil {
		b.files, b.explicit = Files{}, map[string]bool{}
	}
	b.files[p] = f
	b.explicit[p] = b.explicit[p] || explicit
	return nil
}

func (d defaults) file(data []byte, mode *int32, uid *int64) File {
	f := File{Data: data, Mode: DefaultMode, UID: d.uid}
	if d.mode != nil {
		f.Mode = uint32(*d.mode)
	}
	if mode != nil {
		f.Mode = uint32(*mode)
	}
	if uid != nil {
		f.UID = uid
	}
	f.Mode &= 0o777
	return f
}

// checkTree rejects a path below the path of another file.
func (b *builder) checkTree() error {
	if b.files == nil {
		b.files = Files{}
	}
	for p := range b.files {
		for dir := path.Dir(p); dir != "."; dir = path.Dir(dir) {
			if _, ok := b.files[dir]; ok {
				return invalid("path %q lies inside %q, which is a file", p, dir)
			}
		}
	}
	return nil
}

// checkPath checks invariant C1.
func checkPath(p string) error {
	switch {
	case p == "":
		return invalid("path must not be empty")
	case path.IsAbs(p):
		return invalid("path %q must be relative", p)
	case strings.HasPrefix(p, ".."):
		return invalid("path %q must not start with '..'", p)
	case len(p) > 4096 || strings.ContainsRune(p, 0):
		return invalid("path %q is not a valid file name", p)
	case path.Clean(p) == ".":
		return invalid("path %q is not a file name", p)
	}
	for part := range strings.SplitSeq(p, "/") {
		if part == ".." {
			return invalid("path %q must not contain '..'", p)
		}
		if len(part) > 255 {
			return invalid("path %q has a part longer than 255 bytes", p)
		}
	}
	// "./..data" starts with ".." only after cleaning.
	if strings.HasPrefix(path.Clean(p), "..") {
		return invalid("path %q must not start with '..'", p)
	}
	return nil
}

func invalid(format string, args ...any) error {
	return &plan.Error{Kind: plan.Invalid, Err: fmt.Errorf(format, args...)}
}

func notFound(format string, args ...any) error {
	return &plan.Error{Kind: plan.NotFound, Err: fmt.Errorf(format, args...)}
}
