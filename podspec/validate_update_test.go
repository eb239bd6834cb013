package podspec

import (
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/yaml"
)

// kept returns a pod as an API server stores it.
func kept(t *testing.T, manifest string) *corev1.Pod {
	t.Helper()
	pod := &corev1.Pod{}
	if err := yaml.UnmarshalStrict([]byte(manifest), pod); err != nil {
		t.Fatalf("%v in\n%s", err, manifest)
	}
	pod.Name, pod.Namespace, pod.ResourceVersion = "p", "a", "1"
	SetDefaults(pod)
	return pod
}

func TestValidateUpdate(t *testing.T) {
	t.Parallel()
	const plain = "spec: {containers: [{name: c, image: a}]}"
	for _, c := range []struct {
		name     string
		validate func(pod, old *corev1.Pod) field.ErrorList
		old, new string
		want     []string // prefixes of the errors
	}{
		{"an image may change", ValidateUpdate, plain,
			"spec: {containers: [{name: c, image: 'b:1', imagePullPolicy: Always}]}", nil},
		{"an image must stay one", ValidateUpdate, plain,
			"spec: {containers: [{name: c, image: '', imagePullPolicy: Always}]}",
			[]string{"spec.containers[0].image: Required value"}},
		{"a command stays", ValidateUpdate, plain, "spec: {containers: [{name: c, image: a, command: [x]}]}",
			[]string{"spec: Forbidden: pod updates may not change fields other than `spec.containers[*].image`"}},
		{"containers stay", ValidateUpdate, plain, "spec: {containers: [{name: c, image: a}, {name: d, image: a}]}",
			[]string{"spec.containers: Forbidden: pod updates may not add or remove containers"}},
		{"init containers stay", ValidateUpdate, plain, "spec: {initContainers: [{name: d, image: a}], containers: " +
			"[{name: c, image: a}]}",
			[]string{"spec.initContainers: Forbidden: pod updates may not add or remove containers"}},
		{"tolerations may be added", ValidateUpdate, plain,
			"spec: {tolerations: [{operator: Exists}], containers: [{name: c, image: a}]}", nil},
		{"tolerations may not be removed", ValidateUpdate,
			"spec: {tolerations: [{operator: Exists}], containers: [{name: c, image: a}]}", plain,
			[]string{"spec.tolerations: Forbidden: existing toleration can not be modified except its " +
				"tolerationSeconds"}},
		{"tolerationSeconds may change", ValidateUpdate,
			"spec: {tolerations: [{key: k, operator: Exists, effect: NoExecute}], containers: [{name: c, image: a}]}",
			"spec: {tolerations: [{key: k, operator: Exists, effect: NoExecute, tolerationSeconds: 5}], containers: " +
				"[{name: c, image: a}]}", nil},
		{"a deadline may be set", ValidateUpdate, plain, "spec: {activeDeadlineSeconds: 5, containers: [{name: c, " +
			"image: a}]}", nil},
		{"a deadline may not be extended", ValidateUpdate, "spec: {activeDeadlineSeconds: 5, containers: [{name: c, " +
			"image: a}]}",
			"spec: {activeDeadlineSeconds: 6, containers: [{name: c, image: a}]}",
			[]string{"spec.activeDeadlineSeconds: Invalid value: 6: must be less than or equal to previous value"}},
		{"a deadline may not be removed", ValidateUpdate, "spec: {activeDeadlineSeconds: 5, containers: [{name: c, " +
			"image: a}]}", plain,
			[]string{"spec.activeDeadlineSeconds: Invalid value: null: must not update from a positive integer " +
				"to nil value"}},
		{"gates may be removed", ValidateUpdate, "spec: {schedulingGates: [{name: g}], containers: [{name: c, " +
			"image: a}]}", plain, nil},
		{"gates may not be added", ValidateUpdate, plain, "spec: {schedulingGates: [{name: g}], containers: [{name: " +
			"c, image: a}]}",
			[]string{"spec.schedulingGates[0]: Forbidden: only deletion is allowed, but found new " +
				"scheduling gate 'g'"}},
		{"a gated pod may narrow its selection", ValidateUpdate,
			"spec: {schedulingGates: [{name: g}], nodeSelector: {a: b}, containers: [{name: c, image: a}]}",
			"spec: {schedulingGates: [{name: g}], nodeSelector: {a: b, c: d}, containers: [{name: c, image: a}]}", nil},
		{"a gated pod may not widen its selection", ValidateUpdate,
			"spec: {schedulingGates: [{name: g}], nodeSelector: {a: b}, containers: [{name: c, image: a}]}",
			"spec: {schedulingGates: [{name: g}], nodeSelector: {a: c}, containers: [{name: c, image: a}]}",
			[]string{"spec.nodeSelector: Invalid value: {\"a\":\"c\"}: no mutations allowed"}},
		{"a pod without gates may not change its selection", ValidateUpdate, plain,
			"spec: {nodeSelector: {a: b}, containers: [{name: c, image: a}]}",
			[]string{"spec: Forbidden: pod updates may not change fields"}},
		{"a mirror pod stays a mirror pod", ValidateUpdate,
			"metadata: {annotations: {kubernetes.io/config.mirror: x}}\n" + plain, plain,
			[]string{"metadata.annotations[kubernetes.io/config.mirror]: Forbidden: may not remove mirror " +
				"pod annotation"}},
		{"ephemeral containers may not be added by an update", ValidateUpdate, plain,
			"spec: {containers: [{name: c, image: a}], ephemeralContainers: [{name: e, image: b}]}",
			[]string{"spec: Forbidden: pod updates may not change fields"}},
		{"ephemeral containers are added by their subresource", ValidateEphemeralUpdate, plain,
			"spec: {containers: [{name: c, image: a}], ephemeralContainers: [{name: e, image: b}]}", nil},
		{"ephemeral containers may not be removed", ValidateEphemeralUpdate,
			"spec: {containers: [{name: c, image: a}], ephemeralContainers: [{name: e, image: b}]}", plain,
			[]string{"spec.ephemeralContainers: Forbidden: existing ephemeral containers \"e\" may not be removed"}},
		{"ephemeral containers may not change", ValidateEphemeralUpdate,
			"spec: {containers: [{name: c, image: a}], ephemeralContainers: [{name: e, image: b}]}",
			"spec: {containers: [{name: c, image: a}], ephemeralContainers: [{name: e, image: c}]}",
			[]string{"spec.ephemeralContainers: Forbidden: existing ephemeral containers \"e\" may not be changed"}},
		{"a container may be resized", ValidateResize,
			"spec: {containers: [{name: c, image: a, resources: {requests: {cpu: 1}}}]}",
			"spec: {containers: [{name: c, image: a, resources: {requests: {cpu: 2}}}]}", nil},
		{"the QoS class may not change", ValidateResize,
			"spec: {containers: [{name: c, image: a, resources: {limits: {cpu: 1, memory: 1Gi}}}]}",
			"spec: {containers: [{name: c, image: a, resources: {limits: {cpu: 2, memory: 1Gi}, requests: {cpu: 1, " +
				"memory: 1Gi}}}]}",
			[]string{"spec: Invalid value: \"Burstable\": Pod QOS Class may not change as a result of resizing"}},
		{"resources may not be removed", ValidateResize,
			"spec: {containers: [{name: c, image: a, resources: {limits: {cpu: 1}, requests: {memory: 1Gi}}}]}",
			"spec: {containers: [{name: c, image: a, resources: {requests: {cpu: 1, memory: 1Gi}}}]}",
			[]string{"spec.containers[0].resources.limits: Forbidden: resource limits cannot be removed"}},
		{"only CPU and memory are resized", ValidateResize,
			"spec: {containers: [{name: c, image: a, resources: {requests: {cpu: 1, ephemeral-storage: 1Gi}}}]}",
			"spec: {containers: [{name: c, image: a, resources: {requests: {cpu: 1, ephemeral-storage: 2Gi}}}]}",
			[]string{"spec: Forbidden: only cpu and memory resources"}},
		{"pod-level resources may be resized", ValidateResize,
			"spec: {resources: {requests: {cpu: 1}, limits: {memory: 1Gi}}, containers: [{name: c, image: a}]}",
			"spec: {resources: {requests: {cpu: 1}, limits: {memory: 2Gi, cpu: 2}}, containers: [{name: c, image: a}]}",
			nil},
		{"pod-level limits may be added", ValidateResize,
			"spec: {containers: [{name: c, image: a, resources: {requests: {cpu: 1}}}]}",
			"spec: {resources: {limits: {cpu: 2}}, containers: [{name: c, image: a, resources: {requests: {cpu: 1}}}]}",
			nil},
		{"pod-level limits may not be removed", ValidateResize,
			"spec: {resources: {limits: {memory: 1Gi, cpu: 1}}, containers: [{name: c, image: a, resources: " +
				"{requests: {cpu: 1}}}]}",
			"spec: {resources: {limits: {cpu: 1}}, containers: [{name: c, image: a, resources: {requests: {cpu: 1}}}]}",
			[]string{"spec: Invalid value: \"Burstable\"",
				"spec.resources.limits: Forbidden: resource limits cannot be removed",
				"spec.resources.requests: Forbidden"}},
		{"pod-level huge pages may not change", ValidateResize,
			"spec: {resources: {limits: {cpu: 1, hugepages-2Mi: 2Mi}}, containers: [{name: c, image: a}]}",
			"spec: {resources: {limits: {cpu: 1, hugepages-2Mi: 4Mi}}, containers: [{name: c, image: a}]}",
			[]string{"spec: Forbidden: only cpu and memory resources"}},
		{"a resize may not change other fields", ValidateResize, plain, "spec: {containers: [{name: c, image: b}]}",
			[]string{"spec: Forbidden: only cpu and memory resources"}},
		{"a status has addresses", ValidateStatusUpdate, plain,
			plain + "\nstatus: {podIPs: [{ip: 10.0.0.1}, {ip: 10.0.0.2}, {ip: x}], conditions: [{type: Ready}, " +
				"{type: Ready}]}",
			[]string{"status.podIPs: Invalid value", "status.podIPs[2]: Invalid value",
				"status.conditions[1].type: Duplicate value"}},
		{"a terminated container stays terminated", ValidateStatusUpdate,
			"spec: {restartPolicy: OnFailure, containers: [{name: c, image: a}]}\nstatus: {containerStatuses: " +
				"[{name: c, state: {terminated: {exitCode: 0}}}]}",
			"spec: {restartPolicy: OnFailure, containers: [{name: c, image: a}]}\nstatus: {containerStatuses: " +
				"[{name: c, state: {running: {}}}]}",
			[]string{"status.containerStatuses[0].state: Forbidden: may not be transitioned to non-terminated state"}},
		{"a container with a restart policy may start again", ValidateStatusUpdate,
			plain + "\nstatus: {containerStatuses: [{name: c, state: {terminated: {exitCode: 0}}}]}",
			plain + "\nstatus: {containerStatuses: [{name: c, state: {running: {}}}]}", nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			old, pod := kept(t, c.old), kept(t, c.new)
			if c.new == "spec: {containers: [{name: c, image: 'b:1', imagePullPolicy: Always}]}" {
				old.Spec.Containers[0].ImagePullPolicy = pod.Spec.Containers[0].ImagePullPolicy
			}
			var got []string
			for _, e := range c.validate(pod, old) {
				got = append(got, e.Error())
			}
			for _, want := range c.want {
				if !slices.ContainsFunc(got, func(g string) bool { return strings.HasPrefix(g, want) }) {
					t.Errorf("missing: %s", want)
				}
			}
			if len(got) != len(c.want) {
				t.Errorf("got %d errors, want %d:\n%s", len(got), len(c.want), strings.Join(got, "\n"))
			}
		})
	}
}

func TestDifferences(t *testing.T) {
	t.Parallel()
	old, pod := kept(t, "spec: {containers: [{name: c, image: a}], nodeSelector: {a: b}}"),
		kept(
			t,
			"spec: {hostNetwork: true, containers: [{name: c, image: a, command: [x], resources: {limits: {cpu: "+
				"1}}}], nodeSelector: {c: d}}",
		)
	want := "spec.containers[0].command, spec.containers[0].resources.limits[cpu], " +
		"spec.containers[0].resources.requests[cpu], " +
		"spec.nodeSelector[a], spec.nodeSelector[c], spec.hostNetwork"
	if got := strings.Join(Differences("spec", old.Spec, pod.Spec), ", "); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

func TestValidateStoredAcceptsNodeRejections(t *testing.T) {
	t.Parallel()
	pod := kept(
		t,
		`spec: {containers: [{name: c, image: a, readinessProbe: {tcpSocket: {port: later}}}], volumes: [{name: v, `+
			`configMap: {name: Not_A_Name}}]}`,
	)
	if errs := Validate(pod); len(errs) != 2 {
		t.Errorf("got %v, want two errors on a node", errs)
	}
	if errs := ValidateCreate(pod); len(errs) != 0 {
		t.Errorf("got %v, want no errors on an API server", errs)
	}
	pod.Spec.EphemeralContainers = []corev1.EphemeralContainer{
		{EphemeralContainerCommon: corev1.EphemeralContainerCommon{
			Name: "e", Image: "b", ImagePullPolicy: corev1.PullAlways,
			TerminationMessagePolicy: corev1.TerminationMessageReadFile}},
	}
	if errs := ValidateCreate(pod); len(errs) != 1 ||
		errs[0].Error() != "spec.ephemeralContainers: Forbidden: cannot be set on create" {
		t.Errorf("got %v", errs)
	}
}

// Defaults that a pod gets when it is created are not set in a template.
func TestTemplateDefaults(t *testing.T) {
	t.Parallel()
	template := &corev1.PodTemplateSpec{}
	if err := yaml.UnmarshalStrict([]byte("spec: {hostNetwork: true, containers: [{name: c, image: a, ports: "+
		"[{containerPort: 80}], resources: {limits: {cpu: 1}}}]}"), template); err != nil {
		t.Fatal(err)
	}
	SetTemplateDefaults(template)
	c := template.Spec.Containers[0]
	if len(c.Resources.Requests) != 0 || c.Ports[0].HostPort != 0 || template.Spec.EnableServiceLinks != nil {
		t.Errorf("pod defaults were set in a template: %+v", template.Spec)
	}
	if errs := ValidateTemplate(template, field.NewPath("spec", "template")); len(errs) != 0 {
		t.Errorf("got %v", errs)
	}
	template.Spec.Containers[0].Name = "C"
	template.Labels = map[string]string{"-": ""}
	errs := ValidateTemplate(template, field.NewPath("spec", "template"))
	if len(errs) != 2 || errs[0].Field != "spec.template.labels" ||
		errs[1].Field != "spec.template.spec.containers[0].name" {
		t.Errorf("got %v", errs)
	}
}
