package mutations

import (
	_ "embed"
	"strings"
	"sync"

	"sigs.k8s.io/yaml"
)

//go:embed words.yaml
var wordsText []byte

// words returns values for fields with a name, valid ones and invalid ones.
var words = sync.OnceValue(func() (out map[string][]string) {
	if err := yaml.Unmarshal(wordsText, &out); err != nil {
		panic("words.yaml: " + err.Error()) // it is a part of this package
	}
	return out
})

// anywhere are values for any string: labels, names, numbers, and what is too long for them.
var anywhere = []string{
	"", "a", "web", "A_B", "a.b", "a/b", "-a", "a-", " ", "a b", "ä", "..", "0", "100%", "1.5", "a\nb", "*", "true",
	strings.Repeat("a", 63), strings.Repeat("a", 64), strings.Repeat("a", 253), strings.Repeat("a", 254),
	strings.Repeat("a.", 126) + "a",
	"example.com/" + strings.Repeat("a", 64), "example.com/a", "a/b/c", "kubernetes.io/a",
}

// keys are keys of maps.
var keys = []string{"a", "example.com/a", "a b", "-a", "", "a/b/c", "/a", "A", "ä", strings.Repeat("a", 64),
	"kubernetes.io/a", "app", "..", ".a", "node.kubernetes.io/x", "storage", "cpu",
	"memory", "example.com/gpu", "hugepages-2Mi", "pods",
	"requests.cpu", "ephemeral-storage", "cpu2"}

var numbers = []string{"0", "-1", "1", "2", "3", "5", "10", "80", "100", "101", "255", "300", "3600", "65535", "65536",
	"1000000", "2147483647", "-2147483648", "2147483648", "1.5", `"1"`}

var quantities = []string{"0", "-1", "1", "1.5", "100m", "1Ki", "2Gi", "20Gi", "1m", "0.0001", "abc", "1e", "",
	"9999999999999999999", "1Zi", "+5", " 1"}

var numbersOrPercents = []string{"0", "-1", "1", "2", "65536", "80", `"50%"`, `"101%"`, `"0%"`, `"-5%"`, `"abc"`,
	`"http"`, `""`, `"1"`, `"a-very-long-port-name"`, "1.5"}

var times = []string{"2026-01-01T00:00:00Z", "2030-01-01T00:00:00.000001Z", "yesterday", "", "2026-13-01T00:00:00Z"}

var documents = []string{`{"a":1}`, `"x"`, `null`, `[1]`, `{}`, `{"b":{"c":[1]}}`}

var binaries = []string{"YQ==", "", "%%%", "LS0tLS1CRUdJTi0tLS0t"}
