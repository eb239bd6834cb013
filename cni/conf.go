package cni

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/utils"
	"github.com/containernetworking/cni/pkg/version"
)

const maxConf = 1 << 20 // bytes; larger files are rejected

// netConf is a parsed configuration.
type netConf struct {
	file            string
	name            string
	version         string   // of the CNI specification
	plugins         []string // required programs in order, IPAM plugins included, without duplicates
	limitsBandwidth bool     // a plugin supports bandwidth limits
}

// load reads the effective configuration. Its errors name the file and the field.
func load(dir string) (netConf, error) {
	file, err := firstConfFile(dir)
	if err != nil {
		return netConf{}, err
	}
	text, err := readConfFile(file)
	if err != nil {
		return netConf{}, fmt.Errorf("%s: %w", file, withoutPath(err))
	}
	n, err := parse(file, text)
	if err != nil {
		return netConf{}, fmt.Errorf("%s: %w", file, err)
	}
	return n, nil
}

// firstConfFile returns the file that the runtime uses.
func firstConfFile(dir string) (string, error) {
	files, err := libcni.ConfFiles(dir, []string{".conf", ".conflist", ".json"})
	if err != nil {
		return "", fmt.Errorf("%s: %w", dir, withoutPath(err))
	}
	if len(files) == 0 {
		return "", fmt.Errorf("no network configuration in %s", dir)
	}
	return slices.Min(files), nil
}

func readConfFile(file string) ([]byte, error) {
	st, err := os.Stat(file)
	if err != nil {
		return nil, err
	}
	if !st.Mode().IsRegular() { // reading a pipe would block
		return nil, errors.New("not a regular file")
	}
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxConf+1))
	if err == nil && len(text) > maxConf {
		return nil, errors.New("larger than 1 MiB")
	}
	return text, err
}

// withoutPath strips the path from an error whose message already contains it.
func withoutPath(err error) error {
	if e, ok := errors.AsType[*os.PathError](err); ok {
		return e.Err
	}
	return err
}

// parse parses a configuration list or the configuration of a single plugin. It checks common
// mistakes first, so that the error names the field. libcni then makes the final decision, because
// the runtime uses it too.
func parse(file string, text []byte) (netConf, error) {
	var raw map[string]json.RawMessage
	if err := json.Unmarshal(text, &raw); err != nil {
		return netConf{}, badJSON(text, err)
	}
	if err := checkTopLevel(raw); err != nil {
		return netConf{}, err
	}
	isList := strings.HasSuffix(file, ".conflist")
	if !isList {
		if _, found := raw["plugins"]; found {
			return netConf{}, errors.New("plugins: only a *.conflist file may contain a list of plugins")
		}
		if err := checkPlugin("", raw); err != nil {
			return netConf{}, err
		}
		conf, err := libcni.ConfFromBytes(text) //nolint:staticcheck // runtimes still take such files
		if err != nil {
			return netConf{}, err
		}
		list, err := libcni.ConfListFromConf(conf) //nolint:staticcheck // as above
		if err != nil {
			return netConf{}, err
		}
		return netConfFrom(file, list)
	}
	if err := checkPlugins(raw); err != nil {
		return netConf{}, err
	}
	list, err := libcni.ConfListFromBytes(text)
	if err != nil {
		return netConf{}, err
	}
	if !list.LoadOnlyInlinedPlugins {
		more, err := libcni.NetworkPluginConfsFromFiles(filepath.Dir(file), list.Name)
		if err != nil {
			return netConf{}, err
		}
		list.Plugins = append(list.Plugins, more...)
	}
	return netConfFrom(file, list)
}

func badJSON(text []byte, err error) error {
	if e, ok := errors.AsType[*json.SyntaxError](err); ok {
		at := min(max(int(e.Offset), 0), len(text))
		return fmt.Errorf("line %d: invalid JSON: %w", 1+strings.Count(string(text[:at]), "\n"), err)
	}
	return errors.New("must be a JSON object")
}

func checkTopLevel(raw map[string]json.RawMessage) error {
	name, err := stringField(raw, "name")
	if err != nil {
		return err
	}
	if name == "" {
		return errors.New("name: required")
	}
	if e := utils.ValidateNetworkName(name); e != nil {
		return fmt.Errorf(
			"name: %q must start with a letter or digit and contain only letters, digits, '_', '.' and '-'",
			name,
		)
	}
	v, err := stringField(raw, "cniVersion")
	if err != nil {
		return err
	}
	if known := version.All.SupportedVersions(); v != "" && !slices.Contains(known, v) {
		return fmt.Errorf("cniVersion: %q is not one of %s", v, strings.Join(known, ", "))
	}
	return nil
}

func checkPlugins(raw map[string]json.RawMessage) error {
	value, found := raw["plugins"]
	if !found {
		return nil // they may be in separate files
	}
	var plugins []json.RawMessage
	if err := json.Unmarshal(value, &plugins); err != nil {
		return errors.New("plugins: must be a list")
	}
	if len(plugins) == 0 {
		return errors.New("plugins: must not be empty")
	}
	for i, value := range plugins {
		at := fmt.Sprintf("plugins[%d]", i)
		var plugin map[string]json.RawMessage
		if err := json.Unmarshal(value, &plugin); err != nil || plugin == nil {
			return fmt.Errorf("%s: must be an object", at)
		}
		if err := checkPlugin(at+".", plugin); err != nil {
			return err
		}
	}
	return nil
}

func checkPlugin(at string, plugin map[string]json.RawMessage) error {
	kind, err := stringField(plugin, "type")
	if err == nil {
		err = checkType(kind)
	}
	if err != nil {
		return fmt.Errorf("%s%w", at, err)
	}
	var ipam map[string]json.RawMessage
	if value, found := plugin["ipam"]; found {
		if err := json.Unmarshal(value, &ipam); err != nil {
			return fmt.Errorf("%sipam: must be an object", at)
		}
	}
	kind, err = stringField(ipam, "type")
	if err == nil && kind != "" {
		err = checkType(kind)
	}
	if err != nil {
		return fmt.Errorf("%sipam.%w", at, err)
	}
	return nil
}

// checkType rejects a plugin type that would name a program outside the plugin directories.
func checkType(kind string) error {
	switch {
	case kind == "":
		return errors.New("type: required")
	case strings.ContainsAny(kind, "/\x00"), kind == ".", kind == "..":
		return fmt.Errorf("type: %q must be a plugin name without a path", kind)
	}
	return nil
}

// stringField returns a field that must be a string if it is present.
func stringField(raw map[string]json.RawMessage, field string) (string, error) {
	value, found := raw[field]
	if !found {
		return "", nil
	}
	var s string
	if err := json.Unmarshal(value, &s); err != nil {
		return "", fmt.Errorf("%s: must be a string", field)
	}
	return s, nil
}

// netConfFrom extracts the data that this package uses from libcni's configuration.
func netConfFrom(file string, list *libcni.NetworkConfigList) (netConf, error) {
	n := netConf{file: file, name: list.Name, version: list.CNIVersion}
	if len(list.Plugins) == 0 {
		return netConf{}, errors.New("plugins: required")
	}
	for _, p := range list.Plugins {
		n.limitsBandwidth = n.limitsBandwidth || p.Network.Capabilities[bandwidth]
		for i, kind := range []string{p.Network.Type, p.Network.IPAM.Type} {
			if i == 1 && kind == "" {
				continue
			}
			if err := checkType(kind); err != nil { // the plugin may come from a separate file
				return netConf{}, err
			}
			if !slices.Contains(n.plugins, kind) {
				n.plugins = append(n.plugins, kind)
			}
		}
	}
	return n, nil
}
