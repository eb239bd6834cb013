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

const classes = `apiVersion: node.k8s.io/v1
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
handler: nowhere
`

const classed = `apiVersion: v1
kind: Pod
metadata: {name: %s, namespace: default}
spec:
  runtimeClassName: %s
  terminationGracePeriodSeconds: 1
  containers: [{name: c, image: '%s', args: [sleep], resources: {requests: {cpu: 10m}}}]
`

// TestRuntimeClasses: a pod with a RuntimeClass runs with its handler on a node that the class
// selects, and uses the overhead in addition to its own resources.
func TestRuntimeClasses(t *testing.T) {
	t.Parallel()
	p := start(t, pairOptions{Handlers: []string{"second"}})
	p.until("the node's handlers", func() string {
		if got := " " + p.field("node", p.Node, ".status.runtimeHandlers[*].name") + " "; !strings.Contains(got, " runc ") ||
			!strings.Contains(got, " second ") {
			return got
		}
		return ""
	})
	if out, err := p.TryKubectl(t, p.classed("early", "sandboxed"), "apply", "-f", "-"); err == nil ||
		!strings.Contains(out, `pod rejected: RuntimeClass "sandboxed" not found`) {
		t.Errorf("pod with an unknown RuntimeClass: %v %s", err, out)
	}
	p.Apply(t, classes)
	p.Kubectl(t, "taint", "node", p.Node, "only=second:NoSchedule")
	p.until("a pod", func() string {
		out, err := p.TryKubectl(t, p.classed("boxed", "sandboxed"), "apply", "-f", "-")
		if err != nil { // the class may be newer than the server's cache
			return out
		}
		return ""
	})
	p.until("the scheduler to miss the class's nodes", func() string {
		if why := p.field("pod", "boxed", `.status.conditions[?(@.type=="PodScheduled")].message`); !strings.Contains(why,
			"node(s) didn't match Pod's node affinity/selector") {
			return why
		}
		return ""
	})
	p.Kubectl(t, "label", "node", p.Node, "runtime=second")
	p.waitForField("pod", "boxed", ready, "True")
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
			t.Errorf("got runtime handler %q", s.RuntimeHandler)
		}
		if _, err := os.Stat(filepath.Join(p.Host.HandlerDir("second"), s.Id)); err != nil {
			t.Errorf("sandbox not found in the second handler: %v", err)
		}
	}
	if out := p.Kubectl(t, "describe", "node", p.Node); !strings.Contains(out, "40m") {
		t.Errorf("overhead not counted: %s", out)
	}
	p.Apply(t, p.classed("nowhere", "lost")+"  nodeName: "+p.Node+"\n  tolerations: [{operator: Exists}]\n")
	p.until("what is wrong with the other class", func() string {
		out := p.Kubectl(t, "get", "events", "--field-selector", "involvedObject.name=nowhere", "-o",
			`jsonpath={range .items[*]}{.reason}: {.message}{"\n"}{end}`)
		if !strings.Contains(out, "FailedCreatePodSandBox") || !strings.Contains(out, "nowhere") {
			return out
		}
		return ""
	})
	p.Kubectl(t, "delete", "pods", "--all", "--timeout=60s")
}

func (p *Pair) classed(name, class string) string {
	return fmt.Sprintf(classed, name, class, images.TestboxRef)
}
