package explain

import (
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"berth/agent/source"
	"berth/agent/status"
	"berth/nodeapi"
)

// Node is the state of a node apart from its pods.
type Node struct {
	Name              string
	Sources           []*source.Snapshot // the latest of each source
	WaitingForRuntime string             // why the state of the runtime is unknown; empty: it is known
	WaitingSince      time.Time          // start of WaitingForRuntime
	RuntimeProblem    string             // current problem of the runtime; empty: none
	StoreProblem      string             // why pod records are only in memory; empty: they are persisted
}

// Summary returns the problems of the node.
func (n Node) Summary() nodeapi.NodeSummary {
	out := nodeapi.NodeSummary{Name: n.Name}
	for _, snap := range n.Sources {
		for _, f := range snap.FileErrors {
			out.InvalidManifests = append(out.InvalidManifests, nodeapi.InvalidManifest{
				Path: f.Path, Line: f.Line, Field: f.Field, Message: f.Message, Since: f.Since,
				LastValidInUse: f.LastGoodKept,
			})
		}
		for _, w := range snap.Warnings {
			out.Warnings = append(out.Warnings, Warning(w))
		}
	}
	if n.WaitingForRuntime != "" {
		message := fmt.Sprintf(
			"%s (since %s); no pod is started before the state of the runtime is known",
			n.WaitingForRuntime,
			n.WaitingSince.UTC().Format(time.RFC3339),
		)
		out.Warnings = append(out.Warnings, nodeapi.Warning{Object: "container runtime", Message: message})
	}
	if n.WaitingForRuntime == "" && n.RuntimeProblem != "" {
		out.Warnings = append(
			out.Warnings,
			nodeapi.Warning{
				Object:  "container runtime",
				Message: n.RuntimeProblem + "; the reported pod states may be outdated",
			},
		)
	}
	if n.StoreProblem != "" {
		out.Warnings = append(
			out.Warnings,
			nodeapi.Warning{Object: "local store", Message: "pod records are only in memory: " + n.StoreProblem},
		)
	}
	return out
}

// AddRuntimeProblem adds a problem of the runtime as the first wait reason, because everything else
// may be outdated.
func (n Node) AddRuntimeProblem(w *nodeapi.PodExplanation) {
	if n.WaitingForRuntime != "" || n.RuntimeProblem == "" || finished(w.Phase) {
		return
	}
	w.WaitingFor = append([]nodeapi.WaitReason{{Reason: "RuntimeNotReady", Message: n.RuntimeProblem}}, w.WaitingFor...)
	w.Summary = fmt.Sprintf("the state of %s/%s may be outdated: %s", w.Namespace, w.Name, n.RuntimeProblem)
}

// Why explains the state of a pod. waiting are the pods that wait for its name. state returns the
// state of a pod.
func (n Node) Why(
	s *status.Snapshot,
	waiting []*status.Snapshot,
	state func(*status.Snapshot) PodState,
	now time.Time,
) nodeapi.PodExplanation {
	w := Why(state(s), now)
	for _, other := range waiting {
		w.OtherPods = append(w.OtherPods, Why(state(other), now).WaitingFor...)
	}
	n.AddRuntimeProblem(&w)
	if n.WaitingForRuntime != "" || n.RuntimeProblem != "" {
		w.Next = nil // the next steps depend on the unknown state
	}
	return w
}

// PodWarnings returns the warnings of the sources about one pod.
func (n Node) PodWarnings(namespace, name string) (out []nodeapi.Warning) {
	for _, snap := range n.Sources {
		for _, w := range snap.Warnings {
			if w.Pod.Namespace == namespace && w.Pod.Name == name {
				out = append(out, Warning(w))
			}
		}
	}
	return out
}

// InvalidManifest names the invalid manifest file that probably defines the missing pod; empty:
// none is known.
func (n Node) InvalidManifest(name string) string {
	for _, snap := range n.Sources {
		for _, f := range snap.FileErrors {
			if !f.LastGoodKept && strings.Contains(filepath.Base(f.Path), name) {
				return fmt.Sprintf("pod %q not found: %s", name, f.String())
			}
		}
	}
	return ""
}

// Warning converts a warning about a pod or a file.
func Warning(w source.Warning) nodeapi.Warning {
	object := w.File
	if w.Pod.Name != "" {
		object = "pod/" + w.Pod.String()
	}
	return nodeapi.Warning{Object: object, Message: w.Message}
}
