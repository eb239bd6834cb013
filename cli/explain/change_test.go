package explain

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"

	"berth/agent/plan"
	"berth/agent/source"
	"berth/agent/status"
	"berth/nodeapi"
)

func TestChangeOf(t *testing.T) {
	pod := func(uid types.UID, initImage, image string) *corev1.Pod {
		p := &corev1.Pod{}
		p.UID = uid
		p.Annotations = map[string]string{
			source.AnnotationSource:  source.File,
			source.AnnotationContent: initImage + image,
		}
		p.Spec.InitContainers = []corev1.Container{{Name: "i", Image: initImage}}
		p.Spec.Containers = []corev1.Container{{Name: "c", Image: image}}
		return p
	}
	sized := func(memory string) *corev1.Pod {
		p := pod("1", "i", "c")
		p.Spec.Containers[0].Resources.Limits = corev1.ResourceList{corev1.ResourceMemory: resource.MustParse(memory)}
		return p
	}
	for name, c := range map[string]struct {
		was, pod *corev1.Pod
		over     bool
		want     nodeapi.Change
	}{
		"a new pod is created":         {nil, pod("1", "i", "c"), false, nodeapi.Create},
		"another UID replaces the pod": {pod("1", "i", "c"), pod("2", "i", "c"), false, nodeapi.Replace},
		"also with another image":      {pod("1", "i", "c"), pod("2", "i", "d"), false, nodeapi.Replace},
		"an unchanged pod": {
			pod("1", "i", "c"), pod("1", "i", "c"), false, nodeapi.Unchanged,
		},
		"also when it is over": {pod("1", "i", "c"), pod("1", "i", "c"), true,
			nodeapi.Unchanged},
		"another image is updated in place": {pod("1", "i", "c"), pod("1", "i", "d"), false,
			nodeapi.Update},
		"but of one that is over": {pod("1", "i", "c"), pod("1", "i", "d"), true,
			nodeapi.Replace},
		"that of an init container too": {pod("1", "i", "c"), pod("1", "j", "c"), false,
			nodeapi.Update},
		"two that swap their images are a change": {pod("1", "i", "c"), pod("1", "c", "i"), false,
			nodeapi.Update},
		"another quantity is a resize":                       {sized("40Mi"), sized("44Mi"), false, nodeapi.Resize},
		"an equal quantity in another notation is unchanged": {sized("1Gi"), sized("1024Mi"), false, nodeapi.Unchanged},
		"an image and a quantity are updated in place": {
			sized("40Mi"), func() *corev1.Pod {
				p := sized("44Mi")
				p.Spec.Containers[0].Image = "d"
				return p
			}(), false,
			nodeapi.Update,
		},
	} {
		if got := ChangeOf(c.was, c.pod, c.over); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// TestPlanOfEditIsComplete covers resizes with all admission results, and the termination of a pod
// that is replaced.
func TestPlanOfEditIsComplete(t *testing.T) {
	memory := func(amount string, policy corev1.ResourceResizeRestartPolicy) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			p.Annotations = map[string]string{source.AnnotationSource: source.File, source.AnnotationContent: amount}
			c := &p.Spec.Containers[0]
			c.Resources.Limits = corev1.ResourceList{corev1.ResourceMemory: resource.MustParse(amount)}
			c.Resources.Requests = corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("1Mi")}
			c.ResizePolicy = []corev1.ContainerResizePolicy{
				{ResourceName: corev1.ResourceMemory, RestartPolicy: policy},
			}
		}
	}
	for _, row := range []struct {
		name    string
		policy  corev1.ResourceResizeRestartPolicy
		change  func(*corev1.Pod)
		verdict plan.Verdict
		want    []string
	}{
		{
			"resize with a restart", corev1.RestartContainer, memory("44Mi", corev1.RestartContainer),
			plan.Verdict{State: plan.Admitted},
			[]string{"resize  ", "StopContainer a", "StartContainer a"},
		},
		{
			"resize without a restart", corev1.NotRequired, memory("44Mi", corev1.NotRequired),
			plan.Verdict{State: plan.Admitted},
			[]string{"resize  ", "ResizeContainer a"},
		},
		{
			"deferred resize", corev1.RestartContainer, memory("44Mi", corev1.RestartContainer),
			plan.Verdict{State: plan.Wait, Message: "full"},
			[]string{"resize  Deferred: full"},
		},
		{
			"infeasible resize", corev1.RestartContainer, memory("900Gi", corev1.RestartContainer),
			plan.Verdict{State: plan.Rejected, Message: "too much"},
			[]string{"resize  Infeasible: too much"},
		},
		{
			"replaced pod", corev1.NotRequired, func(p *corev1.Pod) { p.UID = "u2" },
			plan.Verdict{State: plan.Admitted},
			[]string{
				"replace 40Mi is gone ", "termination", "StopContainer a", "StopSandbox", "RemoveSandbox", "RunSandbox",
				"StartContainer a",
			},
		},
	} {
		t.Run(row.name, func(t *testing.T) {
			w := pod(memory("40Mi", row.policy)).settle()
			x := w.subject()
			snap := &status.Snapshot{
				Pod:      x.Pod,
				Verdict:  plan.Verdict{State: plan.Admitted},
				Status:   x.Status,
				Observed: x.Observed,
				Memory:   x.Memory,
				Syncs:    1,
			}
			next := x.Pod.DeepCopy()
			next.Generation++
			row.change(next)
			local := PlanContext{
				Limits:  limits,
				Find:    func(string, string) (*status.Snapshot, bool) { return snap, true },
				Objects: func(*corev1.Pod, map[source.ObjectKey]plan.Object) plan.Objects { return nil },
				LocalImage: func(*corev1.Pod, string, plan.Objects) (plan.Image, bool) {
					return plan.Image{ID: "sha:img"}, true
				},
				Rejection: func(_, gone *corev1.Pod) string {
					return gone.Spec.Containers[0].Resources.Limits.Memory().String() + " is gone"
				},
				Resize: func(_, _ *corev1.Pod) plan.Verdict { return row.verdict },
			}
			p := PlanManifest(&source.DesiredState{Pods: []*corev1.Pod{next}}, local, t0).Pods[0]
			got := []string{fmt.Sprintf("%s %s %s", p.Change, p.Rejection, p.ResizeRejection)}
			last := 0
			for _, s := range p.Stages {
				if s.Stage == "termination" {
					got = append(got, s.Stage)
				}
				for _, a := range s.Actions {
					if s.Stage == "termination" {
						last = max(last, a.Sync)
					} else if a.Sync <= last {
						t.Errorf("%s in sync %d, before the pod terminated in sync %d", a.Action, a.Sync, last)
					}
					got = append(got, strings.TrimSpace(a.Action+" "+a.Target))
				}
			}
			rest := got
			for _, want := range row.want {
				for len(rest) > 0 && rest[0] != want {
					rest = rest[1:]
				}
				if len(rest) == 0 {
					t.Fatalf("got %q, missing %q at this position", got, want)
				}
			}
			if len(row.want) == 1 && len(got) != 1 {
				t.Errorf("unexpected plan without actions: %q", got)
			}
			if len(p.Reasons) > 0 {
				t.Errorf("unexpected wait reasons %+v", p.Reasons)
			}
		})
	}
}
