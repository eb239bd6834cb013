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

// Inputs is what content is made from.
type Inputs struct {
	Objects plan.Objects
	// Field and Resource answer the references of downwardAPI items.
	Field    func(fieldPath string) (string, error)
	Resource func(sel *corev1.ResourceFieldSelector) (string, error)
}

// DefaultMode is the mode of a file when neither its item nor its volume
// names one.
const DefaultMode = 0o644

// Build returns the files of a configMap, secret, downwardAPI or projected
// volume. Its errors are *plan.Error: NotFound for a missing object or key,
// Invalid for what this pod can never get.
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
		err = b.downward(src.DownwardAPI.Items, defaults{mode: src.DownwardAPI.DefaultMode, uid: src.DownwardAPI.DefaultUser})
	case src.Projected != nil:
		err = b.projected(src.Projected)
	default:
		err = invalid("a volume of this kind has no content of its own")
	}
	if err != nil {
		return nil, err
	}
	if err := b.checkTree(); err != nil {
		return nil, err
	}
	return b.files, nil
}

// builder gathers the files of one volume, source after source.
type builder struct {
	in       Inputs
	files    Files
	explicit map[string]bool // paths that the user wrote, unlike names taken from keys
}

// defaults are what an item falls back to.
type defaults struct {
	mode *int32
	uid  *int64
}

// add puts one file in place. Two paths that the user wrote must differ; a
// path made from a key gives way to the source named last, as documented for
// projected volumes.
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

// checkTree refuses a path that lies inside another file's path.
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

// checkPath holds invariant C1.
func checkPath(p string) error {
	switch {
	case p == "":
		return invalid("a path must not be empty")
	case path.IsAbs(p):
		return invalid("path %q must be relative", p)
	case strings.HasPrefix(p, ".."):
		return invalid("path %q must not start with '..'", p)
	case len(p) > 4096 || strings.ContainsRune(p, 0):
		return invalid("path %q is not a valid file name", p)
	case path.Clean(p) == ".":
		return invalid("path %q names no file", p)
	}
	for part := range strings.SplitSeq(p, "/") {
		if part == ".." {
			return invalid("path %q must not contain '..'", p)
		}
		if len(part) > 255 {
			return invalid("path %q has a part longer than 255 bytes", p)
		}
	}
	// "./..data" is clean only as "..data".
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
