package podspec

import (
	"encoding/hex"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// Expand replaces $(NAME) by the value that lookup returns for NAME. Unknown names stay as written.
// $$ becomes one $, and $$(NAME) is never replaced. Any other $ stays.
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

// ContainerHash is a stable hash of the fields that must not change in a running container: its
// name and image. It has 16 hexadecimal digits.
func ContainerHash(c *corev1.Container) string {
	h := fnv.New64a()
	h.Write([]byte(c.Name))
	h.Write([]byte{0}) // separator, to distinguish "a","bc" from "ab","c"
	h.Write([]byte(c.Image))
	return hex.EncodeToString(h.Sum(nil))
}

// KubeletContainerHash is the kubelet's hash of the same fields, as in the annotation
// io.kubernetes.container.hash. A kubelet restarts a container whose annotation differs.
func KubeletContainerHash(c *corev1.Container) string {
	fields, err := json.Marshal(map[string]string{"name": c.Name, "image": c.Image})
	if err != nil {
		panic("podspec: " + err.Error()) // strings can be encoded
	}
	h := fnv.New32a()
	// The kubelet hashes the printed form of the encoded fields. Writes to a hash never fail.
	_, _ = fmt.Fprintf(h, "([]uint8)%v", fields)
	return strconv.FormatUint(uint64(h.Sum32()), 16)
}
