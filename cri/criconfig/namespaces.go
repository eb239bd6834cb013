package criconfig

import (
	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// namespaces returns the namespace options of the pod, the same for its sandbox and all of its
// containers.
func namespaces(node Node, pod *corev1.Pod, reason string) (*runtimeapi.NamespaceOption, error) {
	spec := &pod.Spec
	o := &runtimeapi.NamespaceOption{
		Network: namespaceMode(spec.HostNetwork, runtimeapi.NamespaceMode_POD),
		Ipc:     namespaceMode(spec.HostIPC, runtimeapi.NamespaceMode_POD),
		Pid:     namespaceMode(spec.HostPID, runtimeapi.NamespaceMode_CONTAINER),
	}
	if share := spec.ShareProcessNamespace; share != nil && *share {
		if spec.HostPID {
			return nil, invalid(reason, "spec.shareProcessNamespace: hostPID and shareProcessNamespace cannot "+
				"both be true")
		}
		o.Pid = runtimeapi.NamespaceMode_POD
	}
	users, err := userNamespace(node, pod, reason)
	if err != nil {
		return nil, err
	}
	o.UsernsOptions = users
	return o, nil
}

func namespaceMode(host bool, otherwise runtimeapi.NamespaceMode) runtimeapi.NamespaceMode {
	if host {
		return runtimeapi.NamespaceMode_NODE
	}
	return otherwise
}

// userNamespace maps the pod's users to host IDs that belong to the pod alone. It is nil unless the
// pod sets hostUsers: false. If user namespaces are not available, the pod is refused instead of
// running with the host's users.
func userNamespace(node Node, pod *corev1.Pod, reason string) (*runtimeapi.UserNamespace, error) {
	if pod.Spec.HostUsers == nil || *pod.Spec.HostUsers {
		return nil, nil
	}
	if pod.Spec.HostNetwork || pod.Spec.HostPID || pod.Spec.HostIPC {
		return nil, invalid(reason, "spec.hostUsers: false excludes hostNetwork, hostPID and hostIPC")
	}
	handler, err := RuntimeHandler(node, pod)
	if err != nil {
		return nil, err
	}
	if !node.Features[handler].UserNamespaces {
		return nil, unsupported(reason, "spec.hostUsers: %s does not support user namespaces", describeHandler(handler))
	}
	if node.UserIDs == nil {
		return nil, unsupported(reason, "spec.hostUsers: the node has no range of host IDs for user namespaces")
	}
	ids, err := node.UserIDs(string(pod.UID))
	if err != nil {
		return nil, missing(reason, "spec.hostUsers: %w", err)
	}
	mapping := func() []*runtimeapi.IDMapping {
		return []*runtimeapi.IDMapping{{HostId: ids.First, ContainerId: 0, Length: ids.Count}}
	}
	return &runtimeapi.UserNamespace{Mode: runtimeapi.NamespaceMode_POD, Uids: mapping(), Gids: mapping()}, nil
}

// TargetContainer returns the name of the container whose process namespace an ephemeral container
// joins. Empty: its own or the pod's.
func TargetContainer(pod *corev1.Pod, ephemeral string) string {
	for i := range pod.Spec.EphemeralContainers {
		if e := &pod.Spec.EphemeralContainers[i]; e.Name == ephemeral {
			return e.TargetContainerName
		}
	}
	return ""
}

// SetTargetContainer lets a container join the process namespace of another container of the pod,
// given by ID. It has no effect if they share a namespace anyway.
func SetTargetContainer(config *runtimeapi.ContainerConfig, containerID string) {
	o := config.GetLinux().GetSecurityContext().GetNamespaceOptions()
	if o == nil || o.Pid != runtimeapi.NamespaceMode_CONTAINER || containerID == "" {
		return
	}
	o.Pid, o.TargetId = runtimeapi.NamespaceMode_TARGET, containerID
}
