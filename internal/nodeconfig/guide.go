package nodeconfig

import (
	"fmt"
	"strings"

	"github.com/spf13/pflag"
)

//go:generate go test -run TestGuideIsWhatTheTableSays -args -rewrite

// Guide returns docs/configuration.md.
func Guide() string {
	var b strings.Builder
	b.WriteString(`# Configuration

<!-- Made from the tables in nodeconfig by "go generate ./internal/nodeconfig". Do not edit. -->

` + "`berth run --config FILE`" + ` reads one YAML or JSON file with up to two documents: upstream's
` + "`KubeletConfiguration`" + ` (` + KubeletAPIVersion + `) and berth's own ` + "`BerthConfiguration`" + ` (` + BerthAPIVersion + `).
Both are decoded strictly: an unknown field, a field that is there twice and a value of the wrong type stop the start,
with the file, the line and the field. Flags win over the file.

` + "```yaml" + `
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
staticPodPath: /etc/kubernetes/manifests
maxPods: 110
---
apiVersion: berth.dev/v1alpha1
kind: BerthConfiguration
cniPodCIDRs: [10.85.0.0/16]
` + "```" + `

## BerthConfiguration

| field | type | default | what it is | flag |
|---|---|---|---|---|
`)
	for _, f := range BerthFields() {
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s | %s |\n", f.Name, f.Type, f.Default, f.Description, code(f.Flag))
	}
	b.WriteString(`
## KubeletConfiguration

Every field is in one of these classes:

- **honoured**: does what upstream documents; defaults are upstream's unless the note says otherwise.
- **inert**: has no meaning here. Setting it is a warning.
- **refused**: stops the start, because ignoring it would change what you get. A value that asks for what berth does
  anyway is accepted.

| field | class | note |
|---|---|---|
`)
	for _, f := range table {
		note := f.Note
		if len(f.Accepted) > 0 {
			note += "; accepted: `" + strings.Join(f.Accepted, "`, `") + "`"
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s |\n", f.Path, f.Class, strings.ReplaceAll(note, "|", "\\|"))
	}
	b.WriteString("\n## Flags\n\n| flag | default | what it is |\n|---|---|---|\n")
	fs := pflag.NewFlagSet("run", pflag.ContinueOnError)
	new(Flags).AddTo(fs)
	fs.VisitAll(func(f *pflag.Flag) {
		value := f.DefValue
		if value == "[]" {
			value = ""
		}
		fmt.Fprintf(&b, "| `--%s` | %s | %s |\n", f.Name, code(value), f.Usage)
	})
	return b.String()
}

func code(s string) string {
	if s == "" {
		return ""
	}
	return "`" + s + "`"
}
