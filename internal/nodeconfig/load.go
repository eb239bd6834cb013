package nodeconfig

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	kubeletv1beta1 "k8s.io/kubelet/config/v1beta1"

	"berth/internal/strictyaml"
)

// API version and kind of upstream's document.
const (
	KubeletAPIVersion = "kubelet.config.k8s.io/v1beta1"
	KubeletKind       = "KubeletConfiguration"
)

// Error is an error of the configuration.
type Error struct {
	File    string // empty: error of a flag
	Line    int    // 0: unknown, or a default value
	Field   string // path in the file, or name of the flag
	Message string
}

func (e *Error) Error() string {
	var b strings.Builder
	if e.File != "" {
		b.WriteString(e.File + ":")
		if e.Line > 0 {
			fmt.Fprintf(&b, "%d:", e.Line)
		}
		b.WriteByte(' ')
	}
	if e.Field != "" {
		b.WriteString(e.Field + ": ")
	}
	return b.String() + e.Message
}

// Errors are all errors. It is never empty as an error.
type Errors []*Error

func (e Errors) Error() string {
	texts := make([]string, len(e))
	for i, x := range e {
		texts[i] = x.Error()
	}
	return strings.Join(texts, "\n")
}

const maxFile = 1 << 20

// Load reads the file that the flags name, if any, and applies the flags. The warnings, one
// sentence each, name fields that are set and have no effect. The error is Errors, or reports that
// the file cannot be read.
func Load(f *Flags) (*Config, []string, error) {
	var data []byte
	if f.Config != "" {
		var err error
		if data, err = readFile(f.Config); err != nil {
			return nil, nil, fmt.Errorf("read configuration: %w", err)
		}
	}
	return Parse(data, f)
}

func readFile(path string) ([]byte, error) {
	st, err := os.Stat(path)
	switch {
	case err != nil:
		return nil, err
	case !st.Mode().IsRegular():
		return nil, fmt.Errorf("%s is not a regular file", path)
	case st.Size() > maxFile:
		return nil, fmt.Errorf("%s has %d bytes, more than the limit of %d", path, st.Size(), maxFile)
	}
	return os.ReadFile(path)
}

// Parse is Load for the content of a file.
func Parse(data []byte, f *Flags) (*Config, []string, error) {
	l := &loader{flags: f, file: f.Config, lines: map[string]int{}}
	l.documents(data)
	if len(l.errs) > 0 {
		return nil, l.warnings, l.errs
	}
	if len(l.raw) > 0 {
		l.classify()
	}
	l.override()
	setDefaults(&l.kubelet)
	setBerthDefaults(&l.berth)
	cfg := l.resolve()
	cfg.ConfigFile = f.Config
	inForce := l.kubelet // a copy, so that the loader can be freed
	cfg.Kubelet = &inForce
	if len(l.errs) > 0 {
		slices.SortStableFunc(l.errs, func(a, b *Error) int { return cmp.Compare(a.Line, b.Line) })
		return nil, l.warnings, l.errs
	}
	return cfg, l.warnings, nil
}

// loader is the state of one call of Parse.
type loader struct {
	flags    *Flags
	file     string
	kubelet  kubeletv1beta1.KubeletConfiguration
	berth    BerthConfiguration
	raw      map[string]any // the KubeletConfiguration as written
	docs     []*strictyaml.Document
	lines    map[string]int // line by field
	fromFlag map[string]string
	warnings []string
	errs     Errors
}

// documents decodes the documents of the file.
func (l *loader) documents(data []byte) {
	docs, err := strictyaml.Parse(data, strictyaml.Limits{Documents: 10, Nodes: 1 << 16})
	l.take(err)
	var kubelet, berth *strictyaml.Document
	for _, doc := range docs {
		version, kind := doc.Kind()
		line := doc.StartLine()
		switch {
		case version == KubeletAPIVersion && kind == KubeletKind && kubelet == nil:
			kubelet = &doc
			written, err := doc.Decode(&l.kubelet)
			l.take(err)
			if err == nil && json.Unmarshal(written, &l.raw) != nil {
				l.complainAt(line, "", "cannot be decoded")
			}
		case version == BerthAPIVersion && kind == BerthKind && berth == nil:
			berth = &doc
			_, err := doc.Decode(&l.berth)
			l.take(err)
		case kind == KubeletKind && version == KubeletAPIVersion, kind == BerthKind && version == BerthAPIVersion:
			l.complainAt(line, "kind", "%s is duplicated in this file", kind)
		case kind == KubeletKind:
			l.complainAt(doc.Line("apiVersion"), "apiVersion", "must be %s", KubeletAPIVersion)
		case kind == BerthKind:
			l.complainAt(doc.Line("apiVersion"), "apiVersion", "must be %s", BerthAPIVersion)
		default:
			l.complainAt(
				line,
				"kind",
				"must be %s (%s) or %s (%s)",
				KubeletKind,
				KubeletAPIVersion,
				BerthKind,
				BerthAPIVersion,
			)
		}
	}
	for _, d := range []*strictyaml.Document{kubelet, berth} {
		if d != nil {
			l.docs = append(l.docs, d)
		}
	}
}

// take adds errors of the decoder.
func (l *loader) take(err error) {
	if list, ok := errors.AsType[strictyaml.Errors](err); ok {
		for _, e := range list {
			l.complainAt(e.Line, e.Field, "%s", e.Message)
		}
	} else if one, ok := errors.AsType[*strictyaml.Error](err); ok {
		l.complainAt(one.Line, one.Field, "%s", one.Message)
	}
}

func (l *loader) complainAt(line int, field, format string, args ...any) {
	l.errs = append(l.errs, &Error{File: l.file, Line: line, Field: field, Message: fmt.Sprintf(format, args...)})
}

// complain adds an error that names the source of the value: a flag, a line, or neither.
func (l *loader) complain(field, format string, args ...any) {
	if flag, ok := l.fromFlag[field]; ok {
		l.errs = append(l.errs, &Error{Field: flag, Message: fmt.Sprintf(format, args...)})
		return
	}
	l.complainAt(l.line(field), field, format, args...)
}

// line returns the line of a field in the file, or 0.
func (l *loader) line(field string) int {
	top, _, _ := strings.Cut(field, ".")
	top, _, _ = strings.Cut(top, "[")
	for _, d := range l.docs {
		if d.Has(top) {
			return d.Line(field)
		}
	}
	return 0
}

// classify applies the table to the fields that are set.
func (l *loader) classify() {
	for _, f := range table {
		value, ok := lookup(l.raw, strings.Split(f.Path, "."))
		if !ok {
			continue
		}
		if f.Class == Ignored && IsZero(value) {
			continue // tools write the zero values of all fields
		}
		switch f.Class {
		case Ignored:
			l.warn(f, "is ignored: "+f.Note)
		case Supported:
		case Rejected:
			if b, err := json.Marshal(value); err != nil || !slices.Contains(f.Accepted, string(b)) {
				text := "is not supported: " + f.Note
				if len(f.Accepted) > 0 {
					text += " (accepted: " + strings.Join(f.Accepted, ", ") + ")"
				}
				l.complain(f.Path, "%s", text)
			}
		}
	}
}

func (l *loader) warn(f Field, text string) {
	l.warnings = append(l.warnings, fmt.Sprintf("%s:%d: %s %s", l.file, l.line(f.Path), f.Path, text))
}

// IsZero reports whether upstream replaces a value by its default.
func IsZero(v any) bool {
	switch v := v.(type) {
	case string:
		return v == "" || v == "0" || v == "0s"
	case float64:
		return v == 0
	case []any:
		return len(v) == 0
	case map[string]any:
		return len(v) == 0
	}
	return false
}

// lookup returns the value of a field as written. null is not set.
func lookup(tree map[string]any, path []string) (any, bool) {
	v, ok := tree[path[0]]
	if !ok || v == nil {
		return nil, false
	}
	if len(path) == 1 {
		return v, true
	}
	sub, ok := v.(map[string]any)
	if !ok {
		return nil, false
	}
	return lookup(sub, path[1:])
}
