package explain

import (
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"berth/agent/source"
	"berth/nodeapi"
)

// Node is what there is to tell of a node beside its pods.
type Node struct {
	Name              string
	Sources           []*source.Snapshot // the newest of each source
	WaitingForRuntime string             // why the runtime has not told what it has; empty: it has
	WaitingSince      time.Time          // of Waiting
	RuntimeProblem    string             // what is wrong with the runtime since; empty: nothing
	StoreProblem      string             // why records of pods are in memory only; empty: they are not
}

// Summary tells what is wrong on a node.
func (n Node) Summary() nodeapi.NodeSummary {
	out := nodeapi.NodeSummary{Name: n.Name}
	for _, snap := range n.Sources {
		for _, f := range snap.FileErrors {
			out.InvalidManifests = append(out.InvalidManifests, nodeapi.InvalidManifest{
				Path: f.Path, Line: f.Line, Field: f.Field, Message: f.Message, Since: f.Since, LastValidInUse: f.LastGoodKept,
			})
		}
		for _, w := range snap.Warnings {
			out.Warnings = append(out.Warnings, Warning(w))
		}
	}
	if n.WaitingForRuntime != "" {
		message := fmt.Sprintf("%s (since %s); no pod is started before it has told what it has", n.WaitingForRuntime, n.WaitingSince.UTC().Format(time.RFC3339))
		out.Warnings = append(out.Warnings, nodeapi.Warning{Object: "container runtime", Message: message})
	}
	if n.WaitingForRuntime == "" && n.RuntimeProblem != "" {
		out.Warnings = append(out.Warnings, nodeapi.Warning{Object: "container runtime", Message: n.RuntimeProblem + "; pods are told of as they were before"})
	}
	if n.StoreProblem != "" {
		out.Warnings = append(out.Warnings, nodeapi.Warning{Object: "local store", Message: "records of pods are in memory only: " + n.StoreProblem})
	}
	return out
}

// AddRuntimeProblem puts before what a pod waits for that the runtime is away: all else is as it
// was before.
func (n Node) AddRuntimeProblem(w *nodeapi.PodExplanation) {
	if n.WaitingForRuntime != "" || n.RuntimeProblem == "" || over(w.Phase) {
		return
	}
	w.WaitingFor = append([]nodeapi.WaitReason{{Reason: "RuntimeNotReady", Message: n.RuntimeProblem}}, w.WaitingFor...)
	w.Summary = fmt.Sprintf("%s/%s is told of as it was before: %s", w.Namespace, w.Name, n.RuntimeProblem)
}

// PodWarnings lists what the sources warn of in one pod.
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

// InvalidManifest says which manifest file keeps a pod of that name from being here;
// empty: none that is known.
func (n Node) InvalidManifest(name string) string {
	for _, snap := range n.Sources {
		for _, f := range snap.FileErrors {
			if !f.LastGoodKept && strings.Contains(filepath.Base(f.Path), name) {
				return fmt.Sprintf("no pod %q: %s", name, f.String())
			}
		}
	}
	return ""
}

// Warning tells a warning by the pod that it is about, or by its file.
func Warning(w source.Warning) nodeapi.Warning {
	object := w.File
	if w.Pod.Name != "" {
		object = "pod/" + w.Pod.String()
	}
	return nodeapi.Warning{Object: object, Message: w.Message}
}
