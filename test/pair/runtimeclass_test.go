package pair

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/test/images"
)

const runtimeClasses = `apiVersion: node.k8s.io/v1
kind: RuntimeClass
metadata: {name: sandboxed}
handler: second
overhead: {podFixed: {cpu: 30m, memory: 24Mi}}
scheduling:
  nodeSelector: {runtime: second}
  tolerations: [{key: only, operator: Equal, value: second, effect: NoSchedule}]
---
apiVersion: node.k8s.io/v1
kind: RuntimeClass
metadata: {name: lost}
handler: unknown-handler
`

const runtimeClassPod = `apiVersion: v1
kind: Pod
metadata: {name: %s, namespace: default}
spec:
  runtimeClassName: %s
  terminationGracePeriodSeconds: 1
  containers: [{name: c, image: '%s', args: [sleep], resources: {requests: {cpu: 10m}}}]
`

// TestRuntimeClasses checks that a pod with a RuntimeClass runs on a node that the class selects, with
// the handler and the overhead of the class.
func TestRuntimeClasses(t *testing.T) {
	t.Parallel()
	p := startPair(t, pairOptions{Handlers: []string{"second"}})
	p.waitUntil("the runtime handlers in the node status", func() string {
		if got := " " + p.field("node", p.Node, ".status.runtimeHandlers[*].name") +
			" "; !strings.Contains(got, " runc ") ||
			!strings.Contains(got, " second ") {
			return got
		}
		return ""
	})
	if out, err := p.TryKubectl(t, p.runtimeClassPod("early", "sandboxed"), "apply", "-f", "-"); err == nil ||
		!strings.Contains(out, `pod rejected: RuntimeClass "sandboxed" not found`) {
		t.Errorf("pod with an unknown RuntimeClass: %v %s", err, out)
	}
	p.Apply(t, runtimeClasses)
	p.Kubectl(t, "taint", "node", p.Node, "only=second:NoSchedule")
	p.waitUntil("creation of a pod with the RuntimeClass", func() string {
		out, err := p.TryKubectl(t, p.runtimeClassPod("boxed", "sandboxed"), "apply", "-f", "-")
		if err != nil { // the server may not have observed the RuntimeClass yet
			return out
		}
		return ""
	})
	p.waitUntil("pod boxed to be unschedulable", func() string {
		message := p.field("pod", "boxed", `.status.conditions[?(@.type=="PodScheduled")].message`)
		if !strings.Contains(message, "node(s) didn't match Pod's node affinity/selector") {
			return message
		}
		return ""
	})
	p.Kubectl(t, "label", "node", p.Node, "runtime=second")
	p.waitForField("pod", "boxed", readyStatus, "True")
	for path, want := range map[string]string{".spec.overhead": `{"cpu":"30m","memory":"24Mi"}`,
		".spec.nodeSelector.runtime": "second", ".spec.nodeName": p.Node} {
		if got := p.field("pod", "boxed", path); got != want {
			t.Errorf("%s: got %s, want %s", path, got, want)
		}
	}
	list, err := p.Host.Runtime.ListPodSandbox(t.Context(), &runtimeapi.ListPodSandboxRequest{})
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range list.Items {
		if s.GetMetadata().GetName() != "boxed" {
			continue
		}
		if s.RuntimeHandler != "second" {
			t.Errorf("got runtime handler %q, want second", s.RuntimeHandler)
		}
		if _, err := os.Stat(filepath.Join(p.Host.HandlerDir("second"), s.Id)); err != nil {
			t.Errorf("no sandbox of the handler second: %v", err)
		}
	}
	if out := p.Kubectl(t, "describe", "node", p.Node); !strings.Contains(out, "40m") {
		t.Errorf("kubectl describe node does not count the overhead: %s", out)
	}
	p.Apply(t, p.runtimeClassPod("nowhere", "lost")+"  nodeName: "+p.Node+"\n  tolerations: [{operator: Exists}]\n")
	p.waitUntil("the event FailedCreatePodSandBox", func() string {
		out := p.Kubectl(t, "get", "events", "--field-selector", "involvedObject.name=nowhere", "-o",
			`jsonpath={range .items[*]}{.reason}: {.message}{"\n"}{end}`)
		if !strings.Contains(out, "FailedCreatePodSandBox") || !strings.Contains(out, "unknown-handler") {
			return out
		}
		return ""
	})
	p.Kubectl(t, "delete", "pods", "--all", "--timeout=4m")
}

func (p *Pair) runtimeClassPod(name, class string) string {
	return fmt.Sprintf(runtimeClassPod, name, class, images.TestboxRef)
}
