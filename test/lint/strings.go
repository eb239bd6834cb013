package main

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"sigs.k8s.io/yaml"
)

const dialect = "test/lint/styles/Berth/Dialect.yml"

// attributes maps attribute names to those of the kubelet's structured logs or of berth.
var attributes = map[string]string{
	"error": "err", "uid": "podUID", "pod_uid": "podUID", "container": "containerName", "container_id": "containerID",
	"sandbox": "podSandboxID", "sandboxID": "podSandboxID", "volume": "volumeName", "duration": "took",
	"on":    "target",
	"every": "interval", "why": "reason", "had": "previous", "has": "current", "wanted": "value",
}

// attributeName is lower camel case with initialisms as in podUID, which sloglint does not know.
var attributeName = regexp.MustCompile(`^[a-z][A-Za-z0-9]*$`)

// logMethods are the methods of slog.Logger with the position of their message.
var logMethods = map[string]int{
	"Debug": 0, "Info": 0, "Warn": 0, "Error": 0,
	"DebugContext": 1, "InfoContext": 1, "WarnContext": 1, "ErrorContext": 1, "Log": 2, "LogAttrs": 2,
}

// helpFields are the fields of cobra commands that users read.
var helpFields = []string{"Short", "Long", "Example", "Deprecated"}

// checkStrings checks the Go files below dir, tests excluded, and the comments of other files.
func checkStrings(dir string) ([]string, error) {
	banned, err := readTokens(filepath.Join(dir, dialect))
	if err != nil {
		return nil, err
	}
	c := checker{banned: banned, fset: token.NewFileSet(), dir: dir}
	err = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := d.Name()
		if d.IsDir() && path != dir && (strings.HasPrefix(name, ".") || name == "testdata" || name == "bin" ||
			name == "test") {
			return filepath.SkipDir
		}
		if d.IsDir() || !strings.HasSuffix(name, ".go") || strings.HasSuffix(name, "_test.go") ||
			strings.HasPrefix(name, "zz_") {
			return nil
		}
		src, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		return c.file(path, src)
	})
	if err != nil {
		return nil, err
	}
	comments, err := checkComments(dir, banned)
	return append(c.found, comments...), err
}

// readTokens compiles the tokens of a Vale rule of kind existence.
func readTokens(path string) (*regexp.Regexp, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var rule struct{ Tokens []string }
	if err := yaml.Unmarshal(bytes.TrimSpace(text), &rule); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	if len(rule.Tokens) == 0 {
		return nil, fmt.Errorf("%s: no tokens", path)
	}
	return regexp.Compile(`(?i)\b(?:` + strings.Join(rule.Tokens, "|") + `)\b`)
}

type checker struct {
	banned *regexp.Regexp
	fset   *token.FileSet
	dir    string
	found  []string
}

func (c *checker) file(path string, src []byte) error {
	f, err := parser.ParseFile(c.fset, path, src, parser.SkipObjectResolution)
	if err != nil {
		return err
	}
	ast.Inspect(f, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.CallExpr:
			c.call(n)
		case *ast.KeyValueExpr:
			if key, ok := n.Key.(*ast.Ident); ok && slices.Contains(helpFields, key.Name) {
				c.words(n.Value, "help text")
			}
		}
		return true
	})
	return nil
}

func (c *checker) call(call *ast.CallExpr) {
	sel, ok := call.Fun.(*ast.SelectorExpr)
	if !ok {
		return
	}
	receiver := exprName(sel.X)
	switch {
	case isLogger(receiver):
		if at, ok := logMethods[sel.Sel.Name]; ok && len(call.Args) > at {
			c.log(call, at)
		}
	case receiver == "fmt" && sel.Sel.Name == "Errorf", receiver == "errors" && sel.Sel.Name == "New":
		if len(call.Args) > 0 {
			c.words(call.Args[0], "error")
		}
	case strings.HasSuffix(sel.Sel.Name, "Var") || strings.HasSuffix(sel.Sel.Name, "VarP"):
		if len(call.Args) >= 4 {
			c.words(call.Args[len(call.Args)-1], "flag help")
		}
	}
}

// log checks one call of a logger: the message is a constant in lower case without a final period,
// and the attributes have the kubelet's names.
func (c *checker) log(call *ast.CallExpr, at int) {
	text, ok := literal(call.Args[at])
	if !ok {
		if b, isBinary := call.Args[at].(*ast.BinaryExpr); isBinary {
			c.report(b.Pos(), "log message is concatenated: values belong in attributes")
		}
		return
	}
	c.words(call.Args[at], "log message")
	first, _ := utf8.DecodeRuneInString(text)
	second := strings.TrimLeftFunc(text, unicode.IsUpper)
	if unicode.IsUpper(first) && len(text)-len(second) == 1 {
		c.report(call.Pos(), fmt.Sprintf("log message starts with a capital: %q", text))
	}
	if strings.HasSuffix(text, ".") {
		c.report(call.Pos(), fmt.Sprintf("log message ends with a period: %q", text))
	}
	if strings.Contains(text, "%") {
		c.report(call.Pos(), fmt.Sprintf("log message has a format verb: %q", text))
	}
	for i := at + 1; i < len(call.Args); i += 2 {
		key, ok := literal(call.Args[i])
		if !ok {
			return
		}
		if better, bad := attributes[key]; bad {
			c.report(call.Args[i].Pos(), fmt.Sprintf("attribute %q: the logs call it %q", key, better))
		}
		if !attributeName.MatchString(key) {
			c.report(call.Args[i].Pos(), fmt.Sprintf("attribute %q is not in lower camel case", key))
		}
	}
}

// words reports banned words in the string literals of an expression.
func (c *checker) words(e ast.Expr, kind string) {
	ast.Inspect(e, func(n ast.Node) bool {
		lit, ok := n.(*ast.BasicLit)
		if !ok {
			return true
		}
		if text, ok := literal(lit); ok {
			for _, word := range c.banned.FindAllString(text, -1) {
				c.report(lit.Pos(), fmt.Sprintf("%s has %q, which is not standard technical English here", kind, word))
			}
		}
		return true
	})
}

func (c *checker) report(at token.Pos, text string) {
	p := c.fset.Position(at)
	name, err := filepath.Rel(c.dir, p.Filename)
	if err != nil {
		name = p.Filename
	}
	c.found = append(c.found, fmt.Sprintf("%s:%d: %s", name, p.Line, text))
}

func isLogger(name string) bool {
	return name == "log" || name == "Log" || name == "logger" || name == "slog"
}

// exprName returns the last name of an expression: "log" for both log and a.b.log.
func exprName(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.Ident:
		return e.Name
	case *ast.SelectorExpr:
		return e.Sel.Name
	}
	return ""
}

func literal(e ast.Expr) (string, bool) {
	lit, ok := e.(*ast.BasicLit)
	if !ok || lit.Kind != token.STRING {
		return "", false
	}
	text, err := strconv.Unquote(lit.Value)
	return text, err == nil
}
