package strictyaml

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sort"
	"strconv"

	yaml "sigs.k8s.io/yaml/goyaml.v3"
)

// parseJSON makes the same tree from JSON that the YAML parser makes. JSON has
// its own parser because YAML reads some of its escapes otherwise.
func parseJSON(data []byte, limit, depth int) ([]*yaml.Node, error) {
	p := jsonParser{dec: json.NewDecoder(bytes.NewReader(data)), depth: depth}
	p.dec.UseNumber()
	for i, c := range data {
		if c == '\n' {
			p.newlines = append(p.newlines, i)
		}
	}
	var nodes []*yaml.Node
	for {
		n, err := p.value(0)
		if errors.Is(err, io.EOF) {
			return nodes, nil
		}
		if err != nil {
			return nil, p.error(err)
		}
		if len(nodes) == limit {
			return nil, tooMany(limit)
		}
		nodes = append(nodes, n)
	}
}

type jsonParser struct {
	dec      *json.Decoder
	newlines []int // offsets
	depth    int
}

// line returns the line of what was read last.
func (p *jsonParser) line() int {
	return sort.SearchInts(p.newlines, int(p.dec.InputOffset())) + 1
}

func (p *jsonParser) error(err error) error {
	if e, ok := errors.AsType[*Error](err); ok {
		return e
	}
	line := p.line()
	if e, ok := errors.AsType[*json.SyntaxError](err); ok {
		line = sort.SearchInts(p.newlines, int(e.Offset)-1) + 1
	}
	if errors.Is(err, io.ErrUnexpectedEOF) {
		return &Error{Line: len(p.newlines) + 1, Message: "not valid JSON: it ends too early"}
	}
	return &Error{Line: line, Message: "not valid JSON: " + withoutQuotes(err.Error())}
}

// value reads one value. At the top level io.EOF says that there is none.
func (p *jsonParser) value(depth int) (*yaml.Node, error) {
	if depth > p.depth {
		return nil, &Error{Line: p.line(), Message: fmt.Sprintf("nested deeper than %d", p.depth)}
	}
	t, err := p.dec.Token()
	if err != nil {
		if depth > 0 && errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return nil, err
	}
	n := &yaml.Node{Kind: yaml.ScalarNode, Line: p.line()}
	switch t := t.(type) {
	case nil:
		n.Tag, n.Value = "!!null", "null"
	case bool:
		n.Tag, n.Value = "!!bool", strconv.FormatBool(t)
	case json.Number:
		n.Tag, n.Value = "!!float", t.String()
		if _, err := strconv.ParseInt(n.Value, 10, 64); err == nil {
			n.Tag = "!!int"
		}
	case string:
		n.Tag, n.Value, n.Style = "!!str", t, yaml.DoubleQuotedStyle
	case json.Delim:
		return n, p.composite(n, t, depth)
	}
	return n, nil
}

// composite reads what is between the brackets, and the closing one.
func (p *jsonParser) composite(n *yaml.Node, open json.Delim, depth int) error {
	n.Kind, n.Tag = yaml.SequenceNode, "!!seq"
	if open == '{' {
		n.Kind, n.Tag = yaml.MappingNode, "!!map"
	}
	for p.dec.More() {
		c, err := p.value(depth + 1) // keys too: the decoder sees to it that they are strings
		if err != nil {
			return err
		}
		n.Content = append(n.Content, c)
	}
	_, err := p.dec.Token()
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}
