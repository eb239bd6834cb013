package podspec

import (
	"errors"
	"fmt"
	"strings"
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

const (
	dockerHub       = "docker.io"
	defaultImageTag = "latest"
	maxImagePath    = 255 // characters of host and path together
	maxImageTag     = 128
)

// ParseImageName parses an image name: [HOST[:PORT]/]PATH[:TAG][@DIGEST]. The first component is a
// host if it is not a valid path: it contains a dot, a colon or an upper-case letter, or is
// localhost.
func ParseImageName(s string) (ImageName, error) {
	n, err := parseImageName(s)
	if err != nil {
		return ImageName{}, fmt.Errorf("invalid reference format: %w", err)
	}
	return n, nil
}

func parseImageName(s string) (ImageName, error) {
	if s == "" {
		return ImageName{}, errors.New("name is empty")
	}
	rest, digest, hasDigest := strings.Cut(s, "@")
	if hasDigest {
		if err := checkDigest(digest); err != nil {
			return ImageName{}, err
		}
	}
	n := ImageName{Digest: digest}
	n.Host, rest = splitHost(rest)
	path, tag, hasTag := strings.Cut(rest, ":")
	n.Path, n.Tag = path, tag
	if n.Host == dockerHub && !strings.Contains(path, "/") {
		n.Path = "library/" + path
	}
	if hasTag {
		if err := checkTag(tag); err != nil {
			return ImageName{}, err
		}
	} else if !hasDigest {
		n.Tag = defaultImageTag
	}
	if err := checkHost(n.Host); err != nil {
		return ImageName{}, err
	}
	if err := checkPath(path); err != nil {
		return ImageName{}, err
	}
	if n.Host == dockerHub && rest == path && isHex(path) && len(path) == 64 {
		return ImageName{}, errors.New("64 hexadecimal digits are an image ID, not a name")
	}
	if len(n.Host)+1+len(n.Path) > maxImagePath {
		return ImageName{}, fmt.Errorf("host and path are longer than %d characters", maxImagePath)
	}
	return n, nil
}

func splitHost(s string) (host, rest string) {
	first, after, found := strings.Cut(s, "/")
	if !found || !looksLikeHost(first) {
		return dockerHub, s
	}
	if first == "index.docker.io" {
		first = dockerHub
	}
	return first, after
}

func looksLikeHost(s string) bool {
	return strings.ContainsAny(s, ".:[") || s == "localhost" || strings.ToLower(s) != s
}

func checkHost(host string) error {
	h, port := SplitPort(host)
	if inner, ok := strings.CutPrefix(h, "["); ok {
		inner, ok = strings.CutSuffix(inner, "]")
		if !ok || inner == "" || strings.Trim(inner, "0123456789abcdefABCDEF:.") != "" {
			return fmt.Errorf("%q is not a registry host", host)
		}
	} else {
		for label := range strings.SplitSeq(h, ".") {
			if !isLabel(label) {
				return fmt.Errorf("%q is not a registry host", host)
			}
		}
	}
	if strings.Contains(host[len(h):], ":") && (port == "" || !isAll(port, isDigit)) {
		return fmt.Errorf("%q has no valid port", host)
	}
	return nil
}

// SplitPort splits the host:port of a registry. An IPv6 address keeps its brackets.
func SplitPort(s string) (host, port string) {
	i := strings.LastIndexByte(s, ':')
	if i < 0 || i < strings.LastIndexByte(s, ']') {
		return s, ""
	}
	return s[:i], s[i+1:]
}

func isLabel(s string) bool {
	return s != "" && isAll(s, func(c byte) bool { return isAlnum(c) || c == '-' }) && s[0] != '-' &&
		s[len(s)-1] != '-'
}

func checkPath(path string) error {
	for part := range strings.SplitSeq(path, "/") {
		switch {
		case part == "":
			return fmt.Errorf("the path has an empty component")
		case strings.ToLower(part) != part:
			return fmt.Errorf("%q must be in lower case", part)
		case !isPathPart(part):
			return fmt.Errorf(
				"%q may contain only lower-case letters and digits, separated by a dot, one or two underscores, or dashes",
				part,
			)
		}
	}
	return nil
}

// isPathPart reports whether s consists of lower-case letters and digits with separators between
// them: one dot, one or two underscores, or dashes.
func isPathPart(s string) bool {
	isWord := func(c byte) bool { return c >= 'a' && c <= 'z' || isDigit(c) }
	if !isWord(s[0]) || !isWord(s[len(s)-1]) {
		return false
	}
	for i := 0; i < len(s); {
		j := i
		for j < len(s) && isWord(s[j]) == isWord(s[i]) {
			j++
		}
		run := s[i:j]
		if !isWord(run[0]) && run != "." && run != "_" && run != "__" && strings.Trim(run, "-") != "" {
			return false
		}
		i = j
	}
	return true
}

func checkTag(tag string) error {
	ok := func(c byte) bool { return isAlnum(c) || c == '_' || c == '.' || c == '-' }
	if tag == "" || len(tag) > maxImageTag || !isAll(tag, ok) || tag[0] == '.' || tag[0] == '-' {
		return fmt.Errorf("the tag %q is not 1 to %d letters, digits, underscores, dots and dashes", tag, maxImageTag)
	}
	return nil
}

func checkDigest(digest string) error {
	algorithm, sum, _ := strings.Cut(digest, ":")
	var length int
	switch algorithm {
	case "sha256":
		length = 64
	case "sha384":
		length = 96
	case "sha512":
		length = 128
	default:
		return fmt.Errorf("the algorithm of digest %q is not sha256, sha384 or sha512", digest)
	}
	if len(sum) != length || !isHex(sum) {
		return fmt.Errorf("the digest %q does not have %d lower-case hexadecimal digits", digest, length)
	}
	return nil
}

func isAll(s string, ok func(byte) bool) bool {
	for i := range len(s) {
		if !ok(s[i]) {
			return false
		}
	}
	return true
}

func isDigit(c byte) bool { return c >= '0' && c <= '9' }

func isAlnum(c byte) bool { return isDigit(c) || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' }

func isHex(s string) bool {
	return isAll(s, func(c byte) bool { return isDigit(c) || c >= 'a' && c <= 'f' })
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
