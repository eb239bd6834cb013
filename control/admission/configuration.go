package admission

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/sets"
	webhookconfig "k8s.io/apiserver/pkg/admission/plugin/webhook/config"
	"k8s.io/apiserver/pkg/apis/apiserver"
	"k8s.io/apiserver/pkg/apis/apiserver/install"
)

// Configurations maps the names of plugins to their configurations.
type Configurations map[string][]byte

// configurable are the plugins with a configuration.
var configurable = []string{"EventRateLimit", "MutatingAdmissionWebhook", "PodSecurity", "ResourceQuota",
	"ValidatingAdmissionWebhook"}

// ReadConfigurations reads a file of kind AdmissionConfiguration. A relative path in the file is below its directory.
// Errors name the field. Without a path, there are no configurations.
func ReadConfigurations(path string) (Configurations, error) {
	if path == "" {
		return nil, nil
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("admission-control-config-file: %w", err)
	}
	c, err := parseConfigurations(text, filepath.Dir(path))
	if err != nil {
		return nil, fmt.Errorf("admission-control-config-file: %s: %w", path, err)
	}
	return c, nil
}

func parseConfigurations(text []byte, dir string) (Configurations, error) {
	scheme := runtime.NewScheme()
	install.Install(scheme)
	codecs := serializer.NewCodecFactory(scheme, serializer.EnableStrict)
	decoded, err := runtime.Decode(codecs.UniversalDecoder(), text)
	if err != nil {
		return nil, err
	}
	file, ok := decoded.(*apiserver.AdmissionConfiguration)
	if !ok {
		return nil, fmt.Errorf("expected AdmissionConfiguration, got %T", decoded)
	}
	out := Configurations{}
	for n, plugin := range file.Plugins {
		if !slices.Contains(configurable, plugin.Name) {
			return nil, fmt.Errorf("plugins[%d].name: %q has no configuration, plugins with one: %s", n, plugin.Name,
				strings.Join(configurable, ", "))
		}
		if _, found := out[plugin.Name]; found {
			return nil, fmt.Errorf("plugins[%d].name: Duplicate value: %q", n, plugin.Name)
		}
		switch {
		case plugin.Configuration != nil:
			out[plugin.Name] = plugin.Configuration.Raw
		case plugin.Path != "":
			if !filepath.IsAbs(plugin.Path) {
				plugin.Path = filepath.Join(dir, plugin.Path)
			}
			if out[plugin.Name], err = os.ReadFile(plugin.Path); err != nil {
				return nil, fmt.Errorf("plugins[%d].path: %w", n, err)
			}
		}
	}
	return out, nil
}

// reader returns the configuration of a plugin, or nil.
func (c Configurations) reader(plugin string) io.Reader {
	if text := c[plugin]; len(text) > 0 {
		return bytes.NewReader(text)
	}
	return nil
}

// checkWebhooks checks the configuration of a plugin of webhooks, which is created later than at the start.
func (c Configurations) checkWebhooks(plugin string) error {
	config, err := webhookconfig.LoadConfig(c.reader(plugin))
	switch {
	case err != nil:
		return err
	case config.StaticManifestsDir != "":
		return fmt.Errorf("staticManifestsDir: Forbidden: webhooks from files are not supported")
	case config.KubeConfigFile != "":
		if _, err := os.Stat(config.KubeConfigFile); err != nil {
			return fmt.Errorf("kubeConfigFile: %w", err)
		}
	}
	return nil
}

// ValidateNames checks the names of plugins to enable and to disable, as kube-apiserver does.
func ValidateNames(enabled, disabled []string) error {
	known := sets.New(append(Names(), mandatory...)...)
	for _, list := range []struct {
		flag  string
		names []string
	}{{"enable-admission-plugins", enabled}, {"disable-admission-plugins", disabled}} {
		for _, name := range list.names {
			if !known.Has(name) {
				return fmt.Errorf("%s plugin %q is unknown, known plugins: %s", list.flag, name,
					strings.Join(Names(), ", "))
			}
		}
	}
	if both := sets.New(enabled...).Intersection(sets.New(disabled...)); both.Len() > 0 {
		return fmt.Errorf("%v in enable-admission-plugins and disable-admission-plugins overlapped", sets.List(both))
	}
	return nil
}

// Warnings returns a warning for each plugin that is named but can neither be enabled nor disabled.
func Warnings(enabled, disabled []string) (warnings []string) {
	for _, name := range slices.Concat(enabled, disabled) {
		if slices.Contains(mandatory, name) {
			warnings = append(warnings, fmt.Sprintf("admission plugin %s is deprecated in "+
				"enable-admission-plugins and disable-admission-plugins and ignored: it always runs, as in "+
				"Kubernetes, where it is not a plugin", name))
		}
	}
	return warnings
}
