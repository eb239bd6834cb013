package criconfig

import (
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/agent/plan"
	"berth/podspec"
)

// Container returns the configuration of a container. Errors are *plan.Error with reason
// CreateContainerConfigError and name the field.
func Container(node Node, pod *corev1.Pod, c *corev1.Container,
	setup plan.ContainerConfig) (*runtimeapi.ContainerConfig, error) {
	if c.Name == "" || c.Name == "." || c.Name == ".." || strings.Contains(c.Name, "/") {
		return nil, invalid(reasonContainer, "container name %q cannot be the name of its log directory", c.Name)
	}
	// Admission rejects new pods with such fields. Ephemeral containers are added later.
	if uses := podspec.ContainerFeatureUses(c); len(uses) > 0 {
		return nil, unsupported(reasonContainer, "%s", uses[0])
	}
	envs, _, err := Env(node, pod, c, setup)
	if err != nil {
		return nil, err
	}
	linux, err := containerLinux(node, pod, c, setup.Image)
	if err != nil {
		return nil, err
	}
	volumes, err := mounts(node, pod, c, withDevices(setup), linux.SecurityContext.NamespaceOptions.UsernsOptions)
	if err != nil {
		return nil, err
	}
	stop, err := stopSignal(c)
	if err != nil {
		return nil, err
	}
	if len(setup.Devices.CDI) > 0 && node.NoCDIReason != "" {
		return nil, unsupported(reasonContainer, "devices: %s", node.NoCDIReason)
	}
	config := &runtimeapi.ContainerConfig{
		Metadata:    &runtimeapi.ContainerMetadata{Name: c.Name, Attempt: setup.Attempt},
		Image:       &runtimeapi.ImageSpec{Image: setup.Image.ID, UserSpecifiedImage: c.Image},
		Command:     expandVariables(c.Command, envs),
		Args:        expandVariables(c.Args, envs),
		WorkingDir:  c.WorkingDir,
		Envs:        envs,
		Mounts:      volumes,
		Devices:     deviceNodes(setup.Devices),
		CDIDevices:  cdiDevices(setup.Devices),
		Labels:      containerLabels(node, pod, c),
		Annotations: containerAnnotations(pod, c, setup),
		LogPath:     LogPath(c.Name, setup.Attempt),
		Stdin:       c.Stdin,
		StdinOnce:   c.StdinOnce,
		Tty:         c.TTY,
		Linux:       linux,
		StopSignal:  stop,
	}
	if err := checkText(config); err != nil {
		return nil, invalid(reasonContainer, "container %q: %w", c.Name, err)
	}
	return config, nil
}

func containerLinux(node Node, pod *corev1.Pod, c *corev1.Container,
	image plan.Image) (*runtimeapi.LinuxContainerConfig, error) {
	security, err := containerSecurity(node, pod, c, image)
	if err != nil {
		return nil, err
	}
	resources, err := containerResources(node, pod, c)
	if err != nil {
		return nil, err
	}
	return &runtimeapi.LinuxContainerConfig{Resources: resources, SecurityContext: security}, nil
}

// LogPath returns the log path of a container, relative to the pod's log directory.
func LogPath(container string, attempt uint32) string {
	return container + "/" + strconv.FormatUint(uint64(attempt), 10) + ".log"
}

// expandVariables replaces $(VAR) in a command line with values of the environment.
func expandVariables(args []string, envs []*runtimeapi.KeyValue) []string {
	if len(args) == 0 {
		return nil
	}
	values := make(map[string]string, len(envs))
	for _, e := range envs {
		values[e.Key] = string(e.Value)
	}
	lookup := func(name string) (string, bool) {
		v, ok := values[name]
		return v, ok
	}
	out := make([]string, len(args))
	for i, w := range args {
		out[i] = podspec.Expand(w, lookup)
	}
	return out
}

// stopSignal returns the stop signal of the container. Unless the spec sets one, the image or the
// runtime decides.
func stopSignal(c *corev1.Container) (runtimeapi.Signal, error) {
	if c.Lifecycle == nil || c.Lifecycle.StopSignal == nil || *c.Lifecycle.StopSignal == "" {
		return runtimeapi.Signal_SIGNAL_RUNTIME_DEFAULT, nil
	}
	name := string(*c.Lifecycle.StopSignal)
	plain := strings.NewReplacer("+", "PLUS", "-", "MINUS").Replace(name)
	n, ok := runtimeapi.Signal_value["SIGNAL_"+plain]
	if !ok || n == 0 {
		return 0, invalid(reasonContainer, "lifecycle.stopSignal: %q is not a signal", name)
	}
	return runtimeapi.Signal(n), nil
}
