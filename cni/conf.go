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

const maxConf = 1 << 20 // bytes: no sane configuration is larger

// network is a configuration that was understood.
type network struct {
	file    string
	name    string
	version string   // of the CNI specification
	plugins []string // the programs it needs, IPAM included, each once, in order
	shapes  bool     // one takes the limits of a pod's bandwidth
}

// load reads the configuration that counts. Its errors are for the user: they
// name the file and the field.
func load(dir string) (network, error) {
	file, err := first(dir)
	if err != nil {
		return network{}, err
	}
	text, err := read(file)
	if err != nil {
		return network{}, fmt.Errorf("%s: %w", file, bare(err))
	}
	n, err := parse(file, text)
	if err != nil {
		return network{}, fmt.Errorf("%s: %w", file, err)
	}
	return n, nil
}

// first is the file that the runtime takes.
func first(dir string) (string, error) {
	files, err := libcni.ConfFiles(dir, []string{".conf", ".conflist", ".json"})
	if err != nil {
		return "", fmt.Errorf("%s: %w", dir, bare(err))
	}
	if len(files) == 0 {
		return "", fmt.Errorf("no network configuration in %s", dir)
	}
	return slices.Min(files), nil
}

func read(file string) ([]byte, error) {
	st, err := os.Stat(file)
	if err != nil {
		return nil, err
	}
	if !st.Mode().IsRegular() { // a pipe would keep the reader waiting
		return nil, errors.New("is no regular file")
	}
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxConf+1))
	if err == nil && len(text) > maxConf {
		return nil, errors.New("is larger than 1 MiB")
	}
	return text, err
}

// bare is an error without the path, which is said already.
func bare(err error) error {
	if e, ok := errors.AsType[*os.PathError](err); ok {
		return e.Err
	}
	return err
}

// parse understands a configuration, of a list or of a single plugin. What a
// user can get wrong is looked at here, to name the field; libcni has the last
// word, because the runtime goes by it.
func parse(file string, text []byte) (network, error) {
	var raw map[string]json.RawMessage
	if err := json.Unmarshal(text, &raw); err != nil {
		return network{}, badJSON(text, err)
	}
	if err := checkTop(raw); err != nil {
		return network{}, err
	}
	isList := strings.HasSuffix(file, ".conflist")
	if !isList {
		if _, found := raw["plugins"]; found {
			return network{}, errors.New("plugins: only a file named *.conflist may have a list of plugins")
		}
		if err := checkPlugin("", raw); err != nil {
			return network{}, err
		}
		conf, err := libcni.ConfFromBytes(text) //nolint:staticcheck // runtimes still take such files
		if err != nil {
			return network{}, err
		}
		list, err := libcni.ConfListFromConf(conf) //nolint:staticcheck // as above
		if err != nil {
			return network{}, err
		}
		return understood(file, list)
	}
	if err := checkPlugins(raw); err != nil {
		return network{}, err
	}
	list, err := libcni.ConfListFromBytes(text)
	if err != nil {
		return network{}, err
	}
	if !list.LoadOnlyInlinedPlugins {
		more, err := libcni.NetworkPluginConfsFromFiles(filepath.Dir(file), list.Name)
		if err != nil {
			return network{}, err
		}
		list.Plugins = append(list.Plugins, more...)
	}
	return understood(file, list)
}

func badJSON(text []byte, err error) error {
	if e, ok := errors.AsType[*json.SyntaxError](err); ok {
		at := min(max(int(e.Offset), 0), len(text))
		return fmt.Errorf("line %d: no valid JSON: %w", 1+strings.Count(string(text[:at]), "\n"), err)
	}
	return errors.New("must be a JSON object")
}

func checkTop(raw map[string]json.RawMessage) error {
	name, err := text(raw, "name")
	if err != nil {
		return err
	}
	if name == "" {
		return errors.New("name: is missing")
	}
	if e := utils.ValidateNetworkName(name); e != nil {
		return fmt.Errorf("name: %q must start with a letter or digit and hold only those, '_', '.' and '-'", name)
	}
	v, err := text(raw, "cniVersion")
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
		return nil // they may lie in files of their own
	}
	var plugins []json.RawMessage
	if err := json.Unmarshal(value, &plugins); err != nil {
		return errors.New("plugins: must be a list")
	}
	if len(plugins) == 0 {
		return errors.New("plugins: is empty")
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
	kind, err := text(plugin, "type")
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
	kind, err = text(ipam, "type")
	if err == nil && kind != "" {
		err = checkType(kind)
	}
	if err != nil {
		return fmt.Errorf("%sipam.%w", at, err)
	}
	return nil
}

// checkType refuses a type that would name a program outside of the plugins'
// directories.
func checkType(kind string) error {
	switch {
	case kind == "":
		return errors.New("type: is missing")
	case strings.ContainsAny(kind, "/\x00"), kind == ".", kind == "..":
		return fmt.Errorf("type: %q must be the plain name of a plugin", kind)
	}
	return nil
}

// text is a field that must be a string if it is there.
func text(raw map[string]json.RawMessage, field string) (string, error) {
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

// understood takes from libcni's view what is needed later.
func understood(file string, list *libcni.NetworkConfigList) (network, error) {
	n := network{file: file, name: list.Name, version: list.CNIVersion}
	if len(list.Plugins) == 0 {
		return network{}, errors.New("plugins: is missing")
	}
	for _, p := range list.Plugins {
		n.shapes = n.shapes || p.Network.Capabilities[bandwidth]
		for i, kind := range []string{p.Network.Type, p.Network.IPAM.Type} {
			if i == 1 && kind == "" {
				continue
			}
			if err := checkType(kind); err != nil { // of a plugin in a file of its own
				return network{}, err
			}
			if !slices.Contains(n.plugins, kind) {
				n.plugins = append(n.plugins, kind)
			}
		}
	}
	return n, nil
}
