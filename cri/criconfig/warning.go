package criconfig

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"berth/agent/plan"
)

// Warning is a problem of a pod that runs nevertheless.
type Warning struct {
	Reason  string // of an event, as upstream names it
	Message string
}

func (w Warning) String() string { return w.Reason + ": " + w.Message }

func warn(reason, format string, args ...any) Warning {
	return Warning{Reason: reason, Message: fmt.Sprintf(format, args...)}
}

// ContainerWarnings returns the warnings for a container that Container has translated.
func ContainerWarnings(node Node, pod *corev1.Pod, c *corev1.Container, setup plan.ContainerSetup) []Warning {
	if len(c.EnvFrom) == 0 { // no other field causes warnings
		return nil
	}
	_, warnings, _ := Env(node, pod, c, setup) // Container has returned the error
	return warnings
}
