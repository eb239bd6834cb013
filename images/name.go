package images

import (
	"fmt"
	"strings"
)

// name is a parsed image name. Host and path are never empty; at least one of
// tag and digest is set.
type name struct {
	host   string // docker.io, registry.example:5000, [::1]:5000
	path   string // library/busybox
	tag    string // latest where the name gave neither tag nor digest
	digest string // sha256:…
}

// String is the full name, the same for all spellings of it.
func (n name) String() string {
	s := n.host + "/" + n.path
	if n.tag != "" {
		s += ":" + n.tag
	}
	if n.digest != "" {
		s += "@" + n.digest
	}
	return s
}

const (
	defaultHost = "docker.io"
	defaultTag  = "latest"
	maxPath     = 255 // characters of host and path together
	maxTag      = 128
)

// parseName reads an image name as the container world writes it:
// [HOST[:PORT]/]PATH[:TAG][@DIGEST]. The first part is a host if it could not be
// a path: it has a dot, a colon or an upper-case letter, or is localhost.
func parseName(s string) (name, error) {
	if s == "" {
		return name{}, fmt.Errorf("the image name is empty")
	}
	rest, digest, hasDigest := strings.Cut(s, "@")
	if hasDigest {
		if err := checkDigest(digest); err != nil {
			return name{}, fmt.Errorf("image %q: %w", s, err)
		}
	}
	n := name{digest: digest}
	n.host, rest = splitHost(rest)
	path, tag, hasTag := strings.Cut(rest, ":")
	n.path, n.tag = path, tag
	if n.host == defaultHost && !strings.Contains(path, "/") {
		n.path = "library/" + path
	}
	if hasTag {
		if err := checkTag(tag); err != nil {
			return name{}, fmt.Errorf("image %q: %w", s, err)
		}
	} else if !hasDigest {
		n.tag = defaultTag
	}
	if err := checkHost(n.host); err != nil {
		return name{}, fmt.Errorf("image %q: %w", s, err)
	}
	if err := checkPath(path); err != nil {
		return name{}, fmt.Errorf("image %q: %w", s, err)
	}
	if n.host == defaultHost && rest == path && isHex(path) && len(path) == 64 {
		return name{}, fmt.Errorf("image %q: 64 hexadecimal digits are an image ID, not a name", s)
	}
	if len(n.host)+1+len(n.path) > maxPath {
		return name{}, fmt.Errorf("image %q: host and path are longer than %d characters", s, maxPath)
	}
	return n, nil
}

// tagged is the name as the runtime is asked for it: what the pod says, with the
// default tag where it says neither tag nor digest. The host is left to the
// runtime, which may have its own short names.
func tagged(image string, n name) string {
	last := image[strings.LastIndex(image, "/")+1:]
	if n.tag == defaultTag && n.digest == "" && !strings.Contains(last, ":") {
		return image + ":" + defaultTag
	}
	return image
}

func splitHost(s string) (host, rest string) {
	first, after, found := strings.Cut(s, "/")
	if !found || !looksLikeHost(first) {
		return defaultHost, s
	}
	if first == "index.docker.io" {
		first = defaultHost
	}
	return first, after
}

func looksLikeHost(s string) bool {
	return strings.ContainsAny(s, ".:[") || s == "localhost" || strings.ToLower(s) != s
}

func checkHost(host string) error {
	h, port := splitPort(host)
	if inner, ok := strings.CutPrefix(h, "["); ok {
		inner, ok = strings.CutSuffix(inner, "]")
		if !ok || inner == "" || strings.Trim(inner, "0123456789abcdefABCDEF:.") != "" {
			return fmt.Errorf("%q is no registry host", host)
		}
	} else {
		for label := range strings.SplitSeq(h, ".") {
			if !isLabel(label) {
				return fmt.Errorf("%q is no registry host", host)
			}
		}
	}
	if strings.Contains(host[len(h):], ":") && (port == "" || !isAll(port, isDigit)) {
		return fmt.Errorf("%q has no valid port", host)
	}
	return nil
}

// splitPort splits host:port; an IPv6 address keeps its brackets.
func splitPort(s string) (host, port string) {
	i := strings.LastIndexByte(s, ':')
	if i < 0 || i < strings.LastIndexByte(s, ']') {
		return s, ""
	}
	return s[:i], s[i+1:]
}

func isLabel(s string) bool {
	return s != "" && isAll(s, func(c byte) bool { return isAlnum(c) || c == '-' }) && s[0] != '-' && s[len(s)-1] != '-'
}

func checkPath(path string) error {
	for part := range strings.SplitSeq(path, "/") {
		switch {
		case part == "":
			return fmt.Errorf("the path has an empty part")
		case strings.ToLower(part) != part:
			return fmt.Errorf("%q must be in lower case", part)
		case !isPathPart(part):
			return fmt.Errorf("%q may have only lower-case letters and digits, and between them single dots, one or two underscores, or dashes", part)
		}
	}
	return nil
}

// isPathPart reports whether s is words of letters and digits with separators
// between them: one dot, one or two underscores, or dashes.
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
	if tag == "" || len(tag) > maxTag || !isAll(tag, ok) || tag[0] == '.' || tag[0] == '-' {
		return fmt.Errorf("the tag %q is not 1 to %d letters, digits, underscores, dots and dashes", tag, maxTag)
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
		return fmt.Errorf("the digest %q is not of sha256, sha384 or sha512", digest)
	}
	if len(sum) != length || !isHex(sum) {
		return fmt.Errorf("the digest %q has not %d hexadecimal digits in lower case", digest, length)
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
