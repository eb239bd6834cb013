// Package operator builds the operator of websites, the program in the directory websites, as images of two versions,
// and renders its chart.
package operator

import (
	"context"
	"embed"
	"fmt"
	"path/filepath"
	"strings"
	"text/template"

	"sigs.k8s.io/yaml"

	"berth/test/hosts"
	"berth/test/images"
)

// Versions are the versions of the operator. The second one stores another version of its kind.
var Versions = []string{"1", "2"}

const repository = "docker.io/berth/websites"

//go:embed chart
var chart embed.FS

// Chart returns the directory of the chart.
func Chart() (string, error) {
	repo, err := hosts.RepoRoot()
	return filepath.Join(repo, "test", "operator", "chart"), err
}

// Images builds the images of all versions. They differ in the arguments of the program.
func Images(ctx context.Context) ([]images.Archive, error) {
	program, err := hosts.BuildOperator(ctx)
	if err != nil {
		return nil, err
	}
	dir, err := images.CacheDir()
	if err != nil {
		return nil, err
	}
	var out []images.Archive
	for _, version := range Versions {
		image, err := images.Static(ctx, dir, repository+":"+version, program, "--version="+version)
		if err != nil {
			return nil, err
		}
		out = append(out, image)
	}
	return out, nil
}

// Manifests returns the objects of the chart for kubectl apply.
func Manifests(version, namespace string) (string, error) {
	values := map[string]any{}
	text, err := chart.ReadFile("chart/values.yaml")
	if err != nil {
		return "", err
	}
	if err := yaml.Unmarshal(text, &values); err != nil {
		return "", fmt.Errorf("values of the chart: %w", err)
	}
	values["version"] = version
	templates, err := template.ParseFS(chart, "chart/templates/*.yaml")
	if err != nil {
		return "", err
	}
	data := map[string]any{"Values": values, "Release": map[string]any{"Namespace": namespace}}
	var out strings.Builder
	for _, name := range []string{"definition", "access", "operator", "webhooks"} {
		out.WriteString("---\n")
		if err := templates.ExecuteTemplate(&out, name+".yaml", data); err != nil {
			return "", err
		}
	}
	return out.String(), nil
}
