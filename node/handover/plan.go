package handover

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"

	"berth/internal/nodeconfig"
)

// Verdict is what becomes of one setting or checkpoint of the kubelet, in the words of nodeconfig.Class.
type Verdict string

const (
	Supported Verdict = "supported" // works with berth as with the kubelet
	Ignored   Verdict = "ignored"   // a setting without effect with berth
	Warning   Verdict = "warning"   // the note says what differs
	Rejected  Verdict = "rejected"  // prevents the takeover
)

// Row is one line of a plan.
type Row struct {
	// Subject is a flag, a field of the configuration, a file, or a field of a pod.
	Subject string  `json:"subject"`
	Pod     string  `json:"pod,omitempty"` // namespace/name, or the UID if the name is unknown
	Value   string  `json:"value,omitempty"`
	Verdict Verdict `json:"verdict"`
	Note    string  `json:"note,omitempty"`
}

// Plan is the result of Make.
type Plan struct {
	Rows []Row `json:"rows"`
	// Configuration is the configuration file of berth.
	Configuration string `json:"configuration"`
	RootDir       string `json:"rootDir"`
	// Resized are the resources of pods that a handback writes to the checkpoints of the kubelet.
	Resized map[types.UID]Allocation `json:"resized,omitempty"`
}

// Rejected returns the rows that prevent the takeover.
func (p Plan) Rejected() (out []Row) {
	for _, r := range p.Rows {
		if r.Verdict == Rejected {
			out = append(out, r)
		}
	}
	return out
}

// Check returns an error if the plan has rejected rows.
func (p Plan) Check() error {
	if n := len(p.Rejected()); n > 0 {
		return fmt.Errorf("%d rows of the plan are rejected, nothing was changed", n)
	}
	return nil
}

// Settings are the settings of the kubelet, from its flags and configuration files.
type Settings struct {
	Kubelet map[string]any // KubeletConfiguration
	Berth   map[string]any // BerthConfiguration, from flags without a field
	Config  string         // configuration file; empty: none
	Dropins string         // directory of drop-in files; empty: none
	rows    []Row
	sources map[string]string // flag by field
}

// RootDir returns the kubelet's root directory.
func (s *Settings) RootDir() string { return s.path("rootDir", nodeconfig.DefaultRootDir) }

// Kubeconfig returns the kubeconfig and the bootstrap kubeconfig. Empty: none.
func (s *Settings) Kubeconfig() (kubeconfig, bootstrap string) {
	return s.path("kubeconfig", ""), s.path("bootstrapKubeconfig", "")
}

// CertDir returns the directory of the certificates that the kubelet requests.
func (s *Settings) CertDir() string { return s.path("certDir", nodeconfig.DefaultCertDir) }

// RuntimeEndpoint returns the endpoint of the container runtime.
func (s *Settings) RuntimeEndpoint() string {
	v, _ := s.Kubelet["containerRuntimeEndpoint"].(string)
	return cmp.Or(v, nodeconfig.DefaultRuntimeEndpoint)
}

func (s *Settings) path(field, otherwise string) string {
	v, _ := s.Berth[field].(string)
	return cmp.Or(v, otherwise)
}

// Resolve merges the kubelet's configuration files and flags. args is its command line without the
// program. documents are the configuration file and its drop-in files in order; it is empty as long
// as they have not been read. Flags take precedence.
func Resolve(args []string, documents []UnitFile) *Settings {
	s := &Settings{Kubelet: map[string]any{}, Berth: map[string]any{}, sources: map[string]string{}}
	flags, rest := ParseFlags(args)
	for _, a := range rest {
		s.add(Row{Subject: a, Verdict: Rejected, Note: "unknown argument of the kubelet"})
	}
	for _, d := range documents {
		s.merge(d)
	}
	for _, f := range flags {
		s.apply(f)
	}
	if s.Config == "" {
		s.legacyDefaults()
	}
	return s
}

func (s *Settings) add(r Row) { s.rows = append(s.rows, r) }

// merge applies a configuration file as a JSON merge patch, as the kubelet does.
func (s *Settings) merge(d UnitFile) {
	var tree map[string]any
	if err := yaml.Unmarshal([]byte(d.Text), &tree); err != nil {
		s.add(Row{Subject: d.Path, Verdict: Rejected, Note: "cannot be decoded: " + firstLine(err)})
		return
	}
	if tree["apiVersion"] != nodeconfig.KubeletAPIVersion || tree["kind"] != nodeconfig.KubeletKind {
		s.add(Row{Subject: d.Path, Verdict: Rejected, Note: fmt.Sprintf("must be a %s of %s", nodeconfig.KubeletKind,
			nodeconfig.KubeletAPIVersion)})
		return
	}
	delete(tree, "apiVersion")
	delete(tree, "kind")
	mergePatch(s.Kubelet, tree)
}

func mergePatch(into, patch map[string]any) {
	for key, v := range patch {
		sub, isMap := v.(map[string]any)
		switch {
		case v == nil:
			delete(into, key)
		case isMap:
			old, _ := into[key].(map[string]any)
			if old == nil {
				old = map[string]any{}
			}
			mergePatch(old, sub)
			into[key] = old
		default:
			into[key] = v
		}
	}
}

func (s *Settings) apply(f Flag) {
	row, known := flagTable()[f.Name]
	subject := "--" + f.Name
	if !known {
		s.add(Row{Subject: subject, Value: f.Value, Verdict: Rejected, Note: "unknown flag of the kubelet"})
		return
	}
	value, err := row.kind.parse(f.Value)
	switch {
	case err != nil:
		s.add(Row{Subject: subject, Value: f.Value, Verdict: Rejected, Note: "cannot be parsed: " + err.Error()})
	case f.Name == "config":
		s.Config = f.Value
	case f.Name == "config-dir":
		s.Dropins = f.Value
	case row.reject:
		s.add(Row{Subject: subject, Value: f.Value, Verdict: Rejected, Note: row.note})
	case row.note != "":
		s.add(Row{Subject: subject, Value: f.Value, Verdict: Ignored, Note: row.note})
	case row.berth != "":
		s.Berth[row.berth] = value
		s.add(Row{Subject: subject, Value: f.Value, Verdict: Supported})
	case row.field == "featureGates": // gates of flags are added to those of the file
		merged, _ := s.Kubelet[row.field].(map[string]any)
		merged = maps.Clone(merged)
		if merged == nil {
			merged = map[string]any{}
		}
		if gates, ok := value.(map[string]any); ok {
			maps.Copy(merged, gates)
		}
		s.Kubelet[row.field], s.sources[row.field] = merged, subject
	default:
		set(s.Kubelet, row.field, value)
		s.sources[row.field] = subject
	}
}

// legacyDefaults sets the defaults of a kubelet without a configuration file, which are less secure
// than those of the file.
func (s *Settings) legacyDefaults() {
	const source = "default without --config"
	for _, d := range []struct {
		field string
		value any
	}{
		{"authentication.webhook.enabled", false},
		{"authorization.mode", "AlwaysAllow"},
	} {
		if _, is := lookup(s.Kubelet, d.field); !is {
			set(s.Kubelet, d.field, d.value)
			s.sources[d.field] = source
		}
	}
	for field, note := range map[string]string{
		"authentication.anonymous.enabled": "the kubelet accepts anonymous requests by default, berth does not",
		"readOnlyPort":                     "the kubelet opens port 10255 by default, berth does not",
	} {
		if _, is := lookup(s.Kubelet, field); !is {
			s.add(Row{Subject: field, Value: source, Verdict: Ignored, Note: note})
		}
	}
}

// classify adds a row for each field of KubeletConfiguration that is set, and removes the fields
// that berth ignores.
func (s *Settings) classify() {
	if _, is := lookup(s.Kubelet, "rotateCertificates"); !is {
		s.Kubelet["rotateCertificates"] = false // the kubelet's default
	}
	for _, f := range nodeconfig.Fields() {
		value, is := lookup(s.Kubelet, f.Path)
		if !is {
			continue
		}
		r := Row{Subject: f.Path, Value: shown(value), Verdict: Supported}
		if source := s.sources[f.Path]; source != "" {
			r.Subject = f.Path + " (" + source + ")"
		}
		switch f.Class {
		case nodeconfig.Ignored:
			unset(s.Kubelet, f.Path)
			r.Verdict, r.Note = Ignored, f.Note
			if nodeconfig.IsZero(value) {
				continue // tools write the zero values of all fields
			}
		case nodeconfig.Rejected:
			if !nodeconfig.IsZero(value) && !slices.Contains(f.Accepted, shownJSON(value)) {
				r.Verdict, r.Note = Rejected, f.Note
			}
			unset(s.Kubelet, f.Path) // rejected, or what berth does anyway
		case nodeconfig.Supported:
		}
		s.add(r)
	}
}

// configuration returns berth's configuration file, and a row for each error in it.
func (s *Settings) configuration() string {
	kubelet, berth := maps.Clone(s.Kubelet), maps.Clone(s.Berth)
	kubelet["apiVersion"], kubelet["kind"] = nodeconfig.KubeletAPIVersion, nodeconfig.KubeletKind
	berth["apiVersion"], berth["kind"] = nodeconfig.BerthAPIVersion, nodeconfig.BerthKind
	first, err := yaml.Marshal(kubelet)
	second, err2 := yaml.Marshal(berth)
	if err := errors.Join(err, err2); err != nil {
		s.add(Row{Subject: "configuration", Verdict: Rejected, Note: err.Error()})
		return ""
	}
	out := "# Configuration of berth, written by berth takeover from the configuration of the kubelet.\n" +
		"# docs/reference/configuration.md describes all fields. After a change: systemctl reload berth\n" +
		string(first) + "---\n" + string(second)
	_, warnings, err := nodeconfig.Parse([]byte(out), &nodeconfig.Flags{Config: "config.yaml"})
	for _, w := range warnings {
		s.add(Row{Subject: "configuration", Verdict: Warning, Note: w})
	}
	if list, ok := errors.AsType[nodeconfig.Errors](err); ok {
		for _, e := range list {
			s.add(Row{Subject: e.Field, Verdict: Rejected, Note: e.Message})
		}
	}
	return out
}

// Make makes the plan.
func Make(f Facts) Plan {
	s := Resolve(f.Args, f.Documents)
	s.classify()
	f.addressRows(s)
	text := s.configuration()
	rows := slices.Concat(s.rows, f.unitRows(), f.spaceRows(), f.serverRows(s), f.certificateRows(s), f.runtimeRows(s),
		f.checkpointRows(), f.volumeRows(), f.podRows())
	slices.SortStableFunc(rows, func(a, b Row) int { return cmp.Compare(order(a.Verdict), order(b.Verdict)) })
	return Plan{Rows: rows, Configuration: text, RootDir: s.RootDir()}
}

// order puts what prevents the takeover first.
func order(v Verdict) int { return slices.Index([]Verdict{Rejected, Warning, Ignored, Supported}, v) }

func firstLine(err error) string {
	line, _, _ := strings.Cut(err.Error(), "\n")
	return line
}
