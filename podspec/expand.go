package podspec

import (
	"encoding/hex"
	"hash/fnv"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// Expand replaces $(NAME) by what lookup knows of NAME. A name that lookup does
// not know stays as it is written, $$ becomes one $ (so $$(NAME) is never
// replaced), and any other $ stays.
func Expand(s string, lookup func(string) (string, bool)) string {
	if !strings.Contains(s, "$") {
		return s
	}
	var out strings.Builder
	for {
		before, rest, found := strings.Cut(s, "$")
		out.WriteString(before)
		if !found {
			return out.String()
		}
		if strings.HasPrefix(rest, "$") {
			out.WriteByte('$')
			s = rest[1:]
			continue
		}
		name, after, closed := strings.Cut(strings.TrimPrefix(rest, "("), ")")
		if !closed || !strings.HasPrefix(rest, "(") {
			out.WriteByte('$')
			s = rest
			continue
		}
		if value, ok := lookup(name); ok {
			out.WriteString(value)
		} else {
			out.WriteString("$(" + name + ")")
		}
		s = after
	}
}

// ContainerHash is a stable hash over what must not change in a running container:
// its name and image. 16 hexadecimal digits.
func ContainerHash(c *corev1.Container) string {
	h := fnv.New64a()
	h.Write([]byte(c.Name))
	h.Write([]byte{0}) // neither part can hold it: "a","bc" is not "ab","c"
	h.Write([]byte(c.Image))
	return hex.EncodeToString(h.Sum(nil))
}
