// Package arch contains only tests of the source tree: allowed imports, pure packages, the size of the
// binary, and the tests that the documentation names.
package arch

import (
	"bytes"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const root = "../.."

// allowedImports lists, per package of berth, the berth packages that it may import.
// "*" allows all imports, for commands and the control server.
var allowedImports = map[string][]string{
	"podspec":             {},
	"internal/strictyaml": {},
	"admission":           {"podspec"},
	"agent/plan":          {"podspec"},
	"agent/source": {
		"agent/plan", "podspec", "internal/strictyaml", "workloads", "workloads/validation",
	},
	"agent/localworkloads": {
		"agent/source", "agent/status", "podspec", "workloads", "workloads/cronjob", "workloads/daemonset",
		"workloads/deployment", "workloads/job", "workloads/replicaset", "workloads/statefulset",
		"workloads/validation",
	},
	"agent/localservices": {"agent/plan", "agent/source", "agent/status", "podspec", "services"},
	"agent/status/events": {"agent/plan", "podspec"},
	"agent/checkpoint":    {"agent/plan", "podspec"},
	"agent/ownership":     {"cri/criconfig"},
	"agent/status":        {"agent/plan", "podspec"},
	"agent/allocator":     {"admission", "agent/plan", "podspec"},
	"agent/eviction":      {"agent/status", "agent/plan", "node/pressure", "nodeapi", "podspec"},
	"agent/podlogs":       {"agent/plan", "agent/status", "cri/crilog"},
	"agent/criruntime": {"agent", "agent/ownership", "agent/plan", "agent/pod", "agent/source", "cri",
		"podspec"},
	"agent/shutdown": {"agent/status", "node/shutdown"},
	"agent": {
		"agent/pod", "agent/status", "agent/allocator", "agent/plan", "agent/source", "agent/status/events",
		"agent/checkpoint", "agent/ownership", "admission", "podspec",
	},
	"agent/pod": {
		"agent/status", "agent/allocator", "agent/plan", "agent/source", "agent/status/events",
		"agent/checkpoint", "podspec",
	},
	"agent/hostfake":  {"agent/plan", "admission", "podspec"},
	"cri":             {"agent/plan", "podspec", "cri/criconfig", "cri/crilog"},
	"cri/criconfig":   {"agent/plan", "podspec"},
	"cri/crifake":     {"agent/plan", "podspec"},
	"cri/crilog":      {},
	"services":        {},
	"services/proxy":  {"services", "services/proxy/ruleset"},
	"services/dns":    {"services"},
	"services/policy": {"services/policy/rules", "services/policy/selection"},

	"services/enablement":    {"services"},
	"services/proxy/ruleset": {"services"},
	"services/localaddress":  {},

	"services/announce":          {"services", "services/announce/election"},
	"services/announce/election": {},

	"services/nodeservices": {
		"agent/plan", "nodeapi", "services", "services/enablement", "services/dns", "services/localaddress",
		"services/policy",
	},
	"cni":              {"agent/plan", "podspec"},
	"cni/routes":       {},
	"cni/gateway":      {"cni/routes", "internal/apiclient"},
	"cni/networks":     {"agent/plan", "podspec"},
	"probes/lifecycle": {"agent/plan"},
	"images":           {"agent/plan", "internal/strictyaml", "podspec"},
	"images/offline":   {"podspec"},
	"volumes":          {"agent/plan", "podspec", "volumes/content"},
	"volumes/content":  {"agent/plan", "podspec"},
	"volumes/csi": {
		"agent/plan", "internal/apiclient", "node/plugins", "podspec", "volumes/keylock", "volumes/mountinfo",
	},
	"volumes/local":      {"internal/localvolumes", "volumes/keylock", "volumes/mountinfo"},
	"volumes/keylock":    {},
	"volumes/mountinfo":  {},
	"node/plugins":       {},
	"node/cgroups":       {"agent/plan", "podspec"},
	"node/podresources":  {"node/devices"},
	"probes/exectracker": {"agent/plan"},
	"node/devices":       {"agent/plan", "node/plugins", "podspec"},
	"internal/exits":     {},
	"probes":             {"agent/plan", "podspec"},
	"node": {
		"agent/plan", "cri/criconfig", "internal/nodeconfig", "node/cgroups", "node/pressure", "podspec",
	},
	"node/stats": {
		"agent/eviction", "agent/plan", "agent/status", "cri", "node", "node/cgroups", "node/pressure",
		"nodeapi", "nodeapi/server", "podspec", "volumes", "volumes/csi",
	},
	"node/check": {
		"agent/ownership", "cni", "cri", "internal/apiclient", "internal/nodeconfig", "internal/userids", "node",
		"node/cgroups", "node/devices", "node/pressure", "node/registration", "nodeapi", "volumes",
	},
	"node/cis":    {"internal/cis", "internal/nodeconfig", "nodeapi/server"},
	"agent/leaks": {"agent", "agent/plan", "agent/status", "cni", "cni/networks", "cri"},
	"agent/metrics": {
		"agent", "agent/pod", "agent/plan", "agent/status", "internal/telemetry", "podspec",
	},
	"node/handover": {"internal/nodeconfig", "podspec"},
	"node/handover/executor": {
		"agent/checkpoint", "agent/ownership", "agent/source", "cri", "internal/apiclient", "internal/nodeconfig",
		"node/handover", "node/registration", "node/uninstall", "nodeapi", "podspec", "systemd", "systemd/install",
		"volumes",
	},
	"node/uninstall": {
		"agent/checkpoint", "cni/gateway", "internal/apiclient", "internal/nodeconfig", "node", "node/handover",
		"nodeapi/server", "services/localaddress", "services/nodeservices", "services/proxy", "systemd",
		"systemd/install", "volumes",
	},
	"node/pressure":                      {"podspec"},
	"node/shutdown":                      {"podspec"},
	"internal/nodeconfig":                {"podspec", "internal/strictyaml"},
	"internal/nodeconfig/nodeconfigtest": {"internal/nodeconfig"},
	"nodeapi":                            {"internal/cis"},
	"nodeapi/server":                     {"nodeapi"},
	"internal/telemetry":                 {},
	"internal/telemetry/metricstest":     {},
	"internal/userids":                   {},
	"internal/cis":                       {},
	"internal/rules":                     {},
	"internal/rules/rulestest":           {"internal/rules"},
	"systemd":                            {},
	"systemd/install":                    {"systemd"},
	"cli":                                {"internal/cis", "nodeapi"},
	"cli/explain": {
		"agent/localworkloads", "agent/status", "agent/source", "agent/plan", "agent/status/events", "nodeapi",
		"podspec", "services", "services/proxy/ruleset", "workloads", "workloads/daemonset",
	},
	"cmd/berth":         {"*"},
	"cmd/berth-control": {"*"},
	"packaging":         {},
	"packaging/files":   {},
	"packaging/nfpm":    {},

	"services/dns/dnstest": {"services", "services/dns"},

	"internal/apiclient": {"services/policy/addresses/v1"},
	"agent/source/apiserver": {
		"agent/checkpoint", "agent/plan", "agent/source", "internal/apiclient", "podspec", "services",
		"services/policy", "services/policy/addresses", "services/policy/addresses/v1", "services/policy/selection",
	},
	"agent/status/apiserver": {
		"agent/status", "agent/plan", "agent/status/events", "agent/source", "internal/apiclient",
		"podspec",
	},
	"node/registration": {"internal/apiclient", "podspec"},

	"workloads":               {},
	"workloads/workloadstest": {"workloads", "workloads/validation"},
	"workloads/deployment":    {"podspec", "workloads"},
	"workloads/replicaset":    {"workloads"},
	"workloads/autoscaling":   {"workloads"},
	"workloads/statefulset":   {"podspec", "workloads"},
	"workloads/daemonset":     {"admission", "podspec", "workloads"},
	"workloads/job":           {"podspec", "workloads"},
	"workloads/cronjob":       {"podspec", "workloads"},
	"workloads/validation":    {"internal/rules", "podspec"},

	"control":                {"*"}, // wires its own packages, as cmd/berth does
	"control/scheme":         {"control/scheme/openapi", "services/policy/addresses/v1"},
	"control/scheme/openapi": {"services/policy/addresses/v1"},
	"control/storage":        {},
	"control/pki":            {},
	"control/registry": {
		"podspec", "control/validation", "control/validation/deviceselector",
		"control/validation/policyexpressions", "control/printers", "internal/rules",
	},
	"control/printers":                  {"podspec"},
	"control/validation":                {"internal/rules", "podspec", "workloads/validation"},
	"control/validation/deviceselector": {},

	"control/validation/policyexpressions": {"control/validation"},

	"control/serviceips": {"podspec", "control/registry", "control/validation"},
	"control/pods":       {"podspec", "control/registry", "control/printers"},

	"control/scheduler": {
		"podspec", "control/attachments", "control/metrics/subsystem", "control/scheduler/placement",
		"control/volumes",
	},
	"control/scheduler/placement": {"admission", "podspec", "control/volumes"},
	"control/attachments":         {},
	"control/volumes":             {},
	"control/controllers": {
		"admission", "internal/localvolumes", "podspec", "control/attachments", "control/dynamickinds",
		"control/loadbalancer", "control/localvolumes", "control/metrics/subsystem", "control/pki", "control/quota", "control/volumes", "workloads",
		"workloads/deployment", "workloads/statefulset",
		"workloads/daemonset", "workloads/job", "workloads/cronjob", "workloads/replicaset",
		"workloads/autoscaling",
	},
	"control/loadbalancer":  {},
	"control/localvolumes":  {"internal/localvolumes"},
	"internal/localvolumes": {},

	"ui":         {},
	"control/ui": {"ui"},

	"control/audit":    {"internal/strictyaml"},
	"control/fairness": {},

	"control/quota":   {"podspec"},
	"control/metrics": {},
	"control/policyaddresses": {
		"services/policy/addresses", "services/policy/addresses/v1", "services/policy/selection",
	},

	"control/metrics/subsystem": {},
	"control/dynamickinds":      {},
	"control/customresources":   {"control/dynamickinds"},
	"control/aggregation":       {"control/dynamickinds"},

	// control/cis checks the configuration of the server; the server does not know it.
	"control/cis": {
		"control", "control/admission", "control/audit", "control/authn", "control/authz", "control/controllers",
		"control/pki", "internal/cis",
	},

	"control/tokens":    {},
	"control/reviews":   {},
	"control/authn":     {"control/reviews"},
	"control/authz":     {"control/reviews"},
	"control/admission": {"podspec", "control/authz", "control/quota", "control/tokens", "control/volumes"},

	"services/policy/rules":     {"services/policy/selection"},
	"services/policy/selection": {},
	"services/policy/addresses": {
		"services/policy/addresses/v1", "services/policy/selection",
	},
	"services/policy/addresses/v1": {},
	"services/policy/policytest":   {"services/policy/rules", "services/policy/selection"},
}

// pure lists the packages without side effects: no clock, file, lock, log, goroutine or mutable package
// variable, and only standard library packages that are pure themselves.
var pure = []string{
	"podspec", "admission", "agent/plan", "node/pressure", "node/shutdown", "cri/criconfig",
	"cni/routes", "control/printers", "control/validation", "control/scheduler/placement",
	"control/quota", "workloads", "workloads/deployment", "workloads/statefulset",
	"workloads/daemonset", "workloads/job", "workloads/cronjob", "workloads/replicaset",
	"workloads/autoscaling", "workloads/validation", "internal/rules", "services/proxy/ruleset",
	"services/policy/selection", "services/policy/rules", "services/policy/addresses",
	"control/attachments", "control/loadbalancer", "control/localvolumes", "control/volumes",
	"internal/localvolumes", "services/announce/election",
}

// impure lists the packages that no pure package may import.
var impure = []string{
	"context", "io/fs", "io/ioutil", "log", "log/slog", "math/rand", "math/rand/v2", "os", "os/exec", "os/signal",
	"runtime",
	"sync", "sync/atomic", "syscall", "testing", "golang.org/x/sys/unix", "google.golang.org/grpc", "k8s.io/klog/v2",
}

// clockFuncs lists the functions of package time that read the clock or wait.
var clockFuncs = []string{"Now", "Since", "Until", "Sleep", "After", "NewTimer", "NewTicker", "Tick"}

// source is one parsed non-test file.
type source struct {
	path, pkg string
	file      *ast.File
	fset      *token.FileSet
}

// sources parses the tree in this process so that the test cache depends on all files. A child process
// such as "go list" would let a cached "ok" hide a change.
func sources(t *testing.T) (out []source) {
	t.Helper()
	fset := token.NewFileSet()
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		hidden := strings.HasPrefix(d.Name(), ".") && path != root
		if d.IsDir() && (hidden || d.Name() == "testdata" || d.Name() == "bin") {
			return filepath.SkipDir
		}
		if d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return nil
		}
		rel, err := filepath.Rel(root, filepath.Dir(path))
		if err != nil {
			return err
		}
		f, err := parser.ParseFile(fset, path, nil, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		out = append(out, source{path, filepath.ToSlash(rel), f, fset})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(out) < 20 {
		t.Fatalf("found only %d files", len(out))
	}
	return out
}

func TestImportsAreAllowed(t *testing.T) {
	for _, s := range sources(t) {
		if strings.HasPrefix(s.pkg, "test/") {
			continue
		}
		allowed, known := allowedImports[s.pkg]
		if !known {
			t.Errorf("%s: package %s is missing in allowedImports", s.path, s.pkg)
			continue
		}
		for _, im := range s.file.Imports {
			name, _ := strconv.Unquote(im.Path.Value)
			pkg, ok := strings.CutPrefix(name, "berth/")
			if ok && !slices.Contains(allowed, pkg) && !slices.Contains(allowed, "*") {
				t.Errorf("%s: %s must not import %s", s.path, s.pkg, pkg)
			}
		}
	}
}

func TestPurePackagesHaveNoSideEffects(t *testing.T) {
	for _, s := range sources(t) {
		if !slices.Contains(pure, s.pkg) {
			continue
		}
		for _, im := range s.file.Imports {
			if name, _ := strconv.Unquote(im.Path.Value); slices.Contains(impure, name) {
				t.Errorf("%s: %s is pure and must not import %s", s.path, s.pkg, name)
			}
		}
		ast.Inspect(s.file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.GoStmt:
				t.Errorf("%s: a pure package must not start a goroutine", s.fset.Position(n.Pos()))
			case *ast.SelectorExpr:
				x, ok := n.X.(*ast.Ident)
				if ok && x.Name == "time" && slices.Contains(clockFuncs, n.Sel.Name) {
					t.Errorf("%s: a pure package must not read the clock", s.fset.Position(n.Pos()))
				}
			case *ast.AssignStmt:
				return true
			}
			return true
		})
	}
}

// TestPurePackagesDoNotWritePackageVariables allows constant tables in pure packages, but no mutable
// state.
func TestPurePackagesDoNotWritePackageVariables(t *testing.T) {
	byPkg := map[string][]source{}
	for _, s := range sources(t) {
		if slices.Contains(pure, s.pkg) {
			byPkg[s.pkg] = append(byPkg[s.pkg], s)
		}
	}
	for _, files := range byPkg {
		vars := map[string]bool{}
		for _, s := range files {
			for _, d := range s.file.Decls {
				if g, ok := d.(*ast.GenDecl); ok && g.Tok == token.VAR {
					for _, spec := range g.Specs {
						for _, name := range spec.(*ast.ValueSpec).Names {
							vars[name.Name] = name.Name != "_"
						}
					}
				}
			}
		}
		for _, s := range files {
			ast.Inspect(s.file, func(n ast.Node) bool {
				if a, ok := n.(*ast.AssignStmt); ok && a.Tok == token.ASSIGN {
					for _, left := range a.Lhs {
						if id := baseIdent(left); id != nil && vars[id.Name] {
							t.Errorf("%s: package variable %s must not be written", s.fset.Position(a.Pos()), id.Name)
						}
					}
				}
				return true
			})
		}
	}
}

func baseIdent(e ast.Expr) *ast.Ident {
	switch e := e.(type) {
	case *ast.Ident:
		return e
	case *ast.IndexExpr:
		return baseIdent(e.X)
	}
	return nil
}

// TestAgentPackageSizes limits the size of packages agent and agent/pod. Code that grows moves into
// subpackages.
func TestAgentPackageSizes(t *testing.T) {
	limits := map[string]int{"agent": 2150, "agent/pod": 2700}
	lines := map[string]int{}
	for _, s := range sources(t) {
		if limits[s.pkg] == 0 {
			continue
		}
		text, err := os.ReadFile(s.path)
		if err != nil {
			t.Fatal(err)
		}
		lines[s.pkg] += bytes.Count(text, []byte("\n"))
	}
	for pkg, limit := range limits {
		if n := lines[pkg]; n == 0 || n > limit {
			t.Errorf("package %s has %d lines, at most %d are allowed", pkg, n, limit)
		}
	}
}

func TestEveryPackageHasComment(t *testing.T) {
	documented := map[string]bool{}
	for _, s := range sources(t) {
		documented[s.pkg] = documented[s.pkg] || s.file.Doc != nil
	}
	for pkg, ok := range documented {
		if !ok {
			t.Errorf("package %s has no package comment", pkg)
		}
	}
}
