package strictyaml

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"regexp"
	"strconv"
	"strings"

	yaml "sigs.k8s.io/yaml/goyaml.v3"
)

// Error is an error at one place of the input.
type Error struct {
	Line    int    // from 1; 0: the whole input
	Field   string // path like spec.containers[0].image; empty: the document
	Message string
}

func (e *Error) Error() string {
	var b strings.Builder
	if e.Line > 0 {
		fmt.Fprintf(&b, "line %d: ", e.Line)
	}
	if e.Field != "" {
		b.WriteString(e.Field + ": ")
	}
	return b.String() + e.Message
}

// Errors are all errors of one document, in the order of the input. It is never empty as an error.
type Errors []*Error

func (e Errors) Error() string {
	texts := make([]string, len(e))
	for i, x := range e {
		texts[i] = x.Error()
	}
	return strings.Join(texts, "; ")
}

// Limits bound the resources that decoding an input may use. Zero fields have defaults.
type Limits struct {
	Documents int // default 1000
	Nodes     int // values after expansion of aliases, per input; default 1 << 20
	Depth     int // nesting; default 100
}

// Document is one document of an input, or one element of a List.
type Document struct {
	node *yaml.Node
	left *budget
}

// budget limits the work for an input, over all its documents.
type budget struct{ nodes, depth int }

// Parse splits an input into its documents. Empty documents are skipped. The input is JSON if it
// starts like JSON, else YAML. The error is an *Error.
func Parse(data []byte, b Limits) ([]Document, error) {
	left := &budget{nodes: cmp.Or(b.Nodes, 1<<20), depth: cmp.Or(b.Depth, 100)}
	limit := cmp.Or(b.Documents, 1000)
	data = bytes.TrimPrefix(data, []byte("\xef\xbb\xbf"))
	var nodes []*yaml.Node
	var err error
	if trimmed := bytes.TrimLeft(data, " \t\r\n"); len(trimmed) > 0 && (trimmed[0] == '{' || trimmed[0] == '[') {
		if nodes, err = parseJSON(data, limit, left.depth); err != nil {
			var yerr error // flow style YAML starts like JSON
			if nodes, yerr = parseYAML(data, limit); yerr != nil {
				return nil, err
			}
		}
	} else if nodes, err = parseYAML(data, limit); err != nil {
		return nil, err
	}
	docs := make([]Document, 0, len(nodes))
	for _, n := range nodes {
		if n.Kind == yaml.ScalarNode && n.ShortTag() == "!!null" {
			continue
		}
		docs = append(docs, Document{node: n, left: left})
	}
	return docs, nil
}

func tooMany(limit int) error {
	return &Error{Message: fmt.Sprintf("more than %d documents", limit)}
}

var yamlLine = regexp.MustCompile(`^yaml: (?:line (\d+): )?`)

var unknownAnchor = regexp.MustCompile(`^unknown anchor '([^']+)'`)

func parseYAML(data []byte, limit int) (nodes []*yaml.Node, err error) {
	defer func() {
		if r := recover(); r != nil { // a parser bug must not crash the agent
			nodes, err = nil, &Error{Message: "cannot be parsed as YAML"}
		}
	}()
	dec := yaml.NewDecoder(bytes.NewReader(data))
	for {
		var doc yaml.Node
		err := dec.Decode(&doc)
		if errors.Is(err, io.EOF) {
			return nodes, nil
		}
		if err != nil {
			out := &Error{Message: err.Error()}
			if m := yamlLine.FindStringSubmatch(out.Message); m != nil {
				out.Line, _ = strconv.Atoi(m[1])
				out.Message = out.Message[len(m[0]):]
			}
			if m := unknownAnchor.FindStringSubmatch(out.Message); m != nil &&
				out.Line == 0 { // the parser reports no line
				if before, _, found := bytes.Cut(data, []byte("*"+m[1])); found {
					out.Line = 1 + bytes.Count(before, []byte("\n"))
				}
			}
			out.Message = "not valid YAML: " + withoutQuotes(out.Message)
			return nil, out
		}
		if doc.Kind != yaml.DocumentNode || len(doc.Content) == 0 {
			continue
		}
		if len(nodes) == limit {
			return nil, tooMany(limit)
		}
		nodes = append(nodes, doc.Content[0])
	}
}

// withoutQuotes removes quoted input from a parser error.
func withoutQuotes(s string) string {
	return quoted.ReplaceAllString(s, "…")
}

var quoted = regexp.MustCompile("'[^']*'|\"[^\"]*\"|`[^`]*`")

// Kind returns the apiVersion and kind of the document, or empty strings.
func (d Document) Kind() (apiVersion, kind string) {
	if v := d.child("apiVersion"); v != nil && v.Kind == yaml.ScalarNode {
		apiVersion = v.Value
	}
	if v := d.child("kind"); v != nil && v.Kind == yaml.ScalarNode {
		kind = v.Value
	}
	return apiVersion, kind
}

// Scalar returns the text of a scalar field by its path of mapping keys, or an empty string.
func (d Document) Scalar(path ...string) string {
	n := d.node
	for _, key := range path {
		n = child(n, key)
	}
	if n = resolve(n); n == nil || n.Kind != yaml.ScalarNode {
		return ""
	}
	return n.Value
}

// StartLine returns the first line of the document.
func (d Document) StartLine() int { return d.node.Line }

// Items returns the elements of the field items as documents.
func (d Document) Items() ([]Document, error) {
	n := d.child("items")
	if n == nil || n.ShortTag() == "!!null" {
		return nil, nil
	}
	if n.Kind != yaml.SequenceNode {
		return nil, &Error{Line: n.Line, Field: "items", Message: "must be a list"}
	}
	docs := make([]Document, len(n.Content))
	for i, c := range n.Content {
		docs[i] = Document{node: resolve(c), left: d.left}
	}
	return docs, nil
}

func (d Document) child(key string) *yaml.Node { return resolve(child(d.node, key)) }

// child returns the value of a key in a mapping, or nil.
func child(n *yaml.Node, key string) *yaml.Node {
	n = resolve(n)
	if n == nil || n.Kind != yaml.MappingNode {
		return nil
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		if n.Content[i].Value == key {
			return n.Content[i+1]
		}
	}
	return nil
}

// resolve follows an alias. The parser rejects aliases of aliases.
func resolve(n *yaml.Node) *yaml.Node {
	if n != nil && n.Kind == yaml.AliasNode {
		return n.Alias
	}
	return n
}

var pathStep = regexp.MustCompile(`^(?:\.?([^.\[\]]+)|\[([^\]]*)\])`)

// Line returns the line of a field by its validation path, or of its closest existing parent.
func (d Document) Line(path string) int {
	n := resolve(d.node)
	line := n.Line
	for path != "" {
		m := pathStep.FindStringSubmatch(path)
		if m == nil {
			return line
		}
		path = path[len(m[0]):]
		var next *yaml.Node
		if i, err := strconv.Atoi(m[2]); err == nil && n.Kind == yaml.SequenceNode {
			if i >= 0 && i < len(n.Content) {
				next = n.Content[i]
				line = next.Line
			}
		} else if n.Kind == yaml.MappingNode {
			key := cmp.Or(m[1], m[2])
			for i := 0; i+1 < len(n.Content); i += 2 {
				if n.Content[i].Value == key {
					next, line = n.Content[i+1], n.Content[i].Line
				}
			}
		}
		if n = resolve(next); n == nil {
			return line
		}
	}
	return line
}

// Decode decodes the document into a pointer to a struct. It returns the JSON form of the document
// as written, with sorted keys, independent of the fields of the type. The error is Errors.
func (d Document) Decode(into any) ([]byte, error) {
	w := walk{left: d.left, fields: map[reflect.Type]map[string]reflect.Type{}}
	v := w.value(d.node, reflect.TypeOf(into).Elem(), "", 0)
	if len(w.errs) > 0 {
		return nil, w.errs
	}
	b, err := json.Marshal(v)
	if err == nil {
		err = json.Unmarshal(b, into)
	}
	if err != nil {
		return nil, Errors{{Line: d.node.Line, Message: "cannot be decoded as " + reflect.TypeOf(into).Elem().Name()}}
	}
	return b, nil
}

// Has reports whether the document has a top-level field of that name.
func (d Document) Has(field string) bool { return child(d.node, field) != nil }
