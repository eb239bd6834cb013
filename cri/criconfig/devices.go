package criconfig

import (
	"slices"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/agent/plan"
)

// withDevices puts the mounts of device plugins before the container's own,
// which win where both are at one path.
func withDevices(setup plan.ContainerSetup) []plan.Mount {
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

// deviceNodes are the host's device nodes that the container gets.
func deviceNodes(d plan.Devices) (out []*runtimeapi.Device) {
	for _, n := range d.Nodes {
		out = append(out, &runtimeapi.Device{HostPath: n.HostPath, ContainerPath: n.ContainerPath, Permissions: n.Permissions})
	}
	return out
}

// cdiDevices are those that the runtime makes of a specification of its own.
func cdiDevices(d plan.Devices) (out []*runtimeapi.CDIDevice) {
	for _, name := range d.CDI {
		out = append(out, &runtimeapi.CDIDevice{Name: name})
	}
	return out
}
