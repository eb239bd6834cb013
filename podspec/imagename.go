package podspec

import (
	"fmt"
	"strings"

	"github.com/distribution/reference"
)

// ImageName is a parsed image name. Host and Path are never empty, and at least one of Tag and
// Digest is set.
type ImageName struct {
	Host   string // docker.io, registry.example:5000, [::1]:5000
	Path   string // library/busybox
	Tag    string // latest if the name has neither tag nor digest
	Digest string // sha256:…
}

// String returns the canonical name.
func (n ImageName) String() string {
	s := n.Repository()
	if n.Tag != "" {
		s += ":" + n.Tag
	}
	if n.Digest != "" {
		s += "@" + n.Digest
	}
	return s
}

// Repository returns the name without tag and digest.
func (n ImageName) Repository() string { return n.Host + "/" + n.Path }

// maxImagePath bounds the length of host and path together. The library bounds only the path.
const maxImagePath = 255

// ParseImageName parses an image name: [HOST[:PORT]/]PATH[:TAG][@DIGEST]. The first component is a
// host if it is not a valid path: it contains a dot, a colon or an upper-case letter, or is
// localhost.
func ParseImageName(s string) (ImageName, error) {
	ref, err := reference.ParseNormalizedNamed(s)
	if err != nil {
		return ImageName{}, err
	}
	ref = reference.TagNameOnly(ref)
	n := ImageName{Host: reference.Domain(ref), Path: reference.Path(ref)}
	if tagged, ok := ref.(reference.Tagged); ok {
		n.Tag = tagged.Tag()
	}
	if digested, ok := ref.(reference.Digested); ok {
		n.Digest = string(digested.Digest())
	}
	if n.Host == "" {
		return ImageName{}, reference.ErrReferenceInvalidFormat
	}
	if len(n.Repository()) > maxImagePath {
		return ImageName{}, fmt.Errorf("%w: host and path are longer than %d characters",
			reference.ErrReferenceInvalidFormat, maxImagePath)
	}
	return n, nil
}

// SplitPort splits the host:port of a registry. An IPv6 address keeps its brackets.
func SplitPort(s string) (host, port string) {
	i := strings.LastIndexByte(s, ':')
	if i < 0 || i < strings.LastIndexByte(s, ']') {
		return s, ""
	}
	return s[:i], s[i+1:]
}

// ImagePattern matches the images of one repository, or of all repositories below a prefix.
type ImagePattern struct {
	place string // a repository, or a prefix
	below bool
}

// ParseImagePattern parses HOST/PATH or HOST[/PATH]/*. Only full names without tag and digest are
// valid, such as docker.io/library/busybox.
func ParseImagePattern(s string) (ImagePattern, error) {
	place, below := strings.CutSuffix(s, "/*")
	switch {
	case strings.Contains(place, "*"):
		return ImagePattern{}, fmt.Errorf("%q may contain a * only as its last component", s)
	case below && place == "":
		return ImagePattern{}, fmt.Errorf("%q has no registry before the *", s)
	case below && strings.TrimSpace(place) != place:
		return ImagePattern{}, fmt.Errorf("%q has leading or trailing spaces", s)
	case below:
		return ImagePattern{place: place + "/", below: true}, nil
	}
	n, err := ParseImageName(s)
	if err != nil {
		return ImagePattern{}, fmt.Errorf("%q: %w", s, err)
	}
	if n.Repository() != s {
		return ImagePattern{}, fmt.Errorf(
			"%q is not a full name without tag and digest, such as %s",
			s,
			n.Repository(),
		)
	}
	return ImagePattern{place: place}, nil
}

// Matches reports whether the pattern matches the repository of an image.
func (p ImagePattern) Matches(n ImageName) bool {
	if p.below {
		return strings.HasPrefix(n.Repository(), p.place)
	}
	return n.Repository() == p.place
}
