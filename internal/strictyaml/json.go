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

// parseJSON returns the tree that the YAML parser would return for JSON. JSON has its own parser
// because YAML interprets some escapes differently.
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

// line returns the line of the last token.
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
		return &Error{Line: len(p.newlines) + 1, Message: "not valid JSON: unexpected end"}
	}
	return &Error{Line: line, Message: "not valid JSON: " + withoutQuotes(err.Error())}
}

// value parses one value. At the top level, io.EOF reports the end of the input.
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

// composite parses the content of an object or array, and the closing bracket.
func (p *jsonParser) composite(n *yaml.Node, open json.Delim, depth int) error {
	n.Kind, n.Tag = yaml.SequenceNode, "!!seq"
	if open == '{' {
		n.Kind, n.Tag = yaml.MappingNode, "!!map"
	}
	for p.dec.More() {
		c, err := p.value(depth + 1) // keys too: the decoder ensures that they are strings
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
