package devices

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"berth/podspec"
)

// Register registers a device plugin that the plugin watcher has found. name is its resource, endpoint the path of
// its socket. Afterwards it is treated like a plugin that has registered by itself.
func (d *Manager) Register(_ context.Context, name, endpoint string, versions []string) error {
	supported := func(v string) bool { return slices.Contains(pluginapi.SupportedVersions[:], v) }
	if !slices.ContainsFunc(versions, supported) {
		return fmt.Errorf("manager version, %s, is not among plugin supported versions %v", pluginapi.SupportedVersions,
			versions)
	}
	if bad := validation.IsQualifiedName(name); len(bad) > 0 || !podspec.IsExtended(corev1.ResourceName(name)) {
		return fmt.Errorf("invalid name of device plugin socket: %s", name)
	}
	if !filepath.IsAbs(endpoint) {
		return fmt.Errorf("the endpoint %q is not an absolute path", endpoint)
	}
	d.opt.OnRegister(name)
	if !d.connect(&pluginapi.RegisterRequest{Version: pluginapi.Version, Endpoint: endpoint, ResourceName: name}) {
		return fmt.Errorf("device plugins cannot register yet")
	}
	return nil
}

// Deregister does nothing: when the connection to the plugin is lost, its devices become unhealthy, and they expire
// after the grace period.
func (d *Manager) Deregister(string, string) {}
