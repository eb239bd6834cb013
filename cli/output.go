package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"
)

// checkFormat returns an error that lists the possible formats unless format, the value of -o, is
// empty or one of them.
func checkFormat(format string, possible ...string) error {
	if format == "" || slices.Contains(possible, format) {
		return nil
	}
	return fmt.Errorf(
		"unable to match an output format for %q, allowed formats are: %s",
		format,
		strings.Join(possible, ","),
	)
}

// encode writes v as JSON or YAML.
func encode(w io.Writer, format string, v any) error {
	body, err := json.MarshalIndent(v, "", "    ")
	if err != nil {
		return err
	}
	if format == "yaml" {
		if body, err = yaml.JSONToYAML(body); err != nil {
			return err
		}
	} else {
		body = append(body, '\n')
	}
	_, err = w.Write(body)
	return err
}

// list is a Kubernetes v1 List.
type list struct {
	APIVersion string       `json:"apiVersion"`
	Items      any          `json:"items"`
	Kind       string       `json:"kind"`
	Metadata   listMetadata `json:"metadata"`
}

type listMetadata struct {
	ResourceVersion string `json:"resourceVersion"`
}

func listOf(items any, version string) list {
	return list{APIVersion: "v1", Kind: "List", Items: items, Metadata: listMetadata{ResourceVersion: version}}
}
