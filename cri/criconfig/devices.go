package criconfig

import (
	"slices"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/agent/plan"
)

// withDevices adds the mounts of device plugins before those of the container, which take
// precedence at the same path.
func withDevices(setup plan.ContainerConfig) []plan.Mount {
	if len(setup.Devices.Mounts) == 0 {
		return setup.Mounts
	}
	var out []plan.Mount
	for _, m := range setup.Devices.Mounts {
		if !slices.ContainsFunc(setup.Mounts, func(x plan.Mount) bool { return x.ContainerPath == m.ContainerPath }) {
			out = append(out, m)
		}
	}
	return append(out, setup.Mounts...)
}

// deviceNodes returns the device nodes of the host for the container.
func deviceNodes(d plan.Devices) (out []*runtimeapi.Device) {
	for _, n := range d.Nodes {
		out = append(out, &runtimeapi.Device{HostPath: n.HostPath, ContainerPath: n.ContainerPath,
			Permissions: n.Permissions})
	}
	return out
}

// cdiDevices returns the devices that the runtime resolves from CDI specifications.
func cdiDevices(d plan.Devices) (out []*runtimeapi.CDIDevice) {
	for _, name := range d.CDI {
		out = append(out, &runtimeapi.CDIDevice{Name: name})
	}
	return out
}
