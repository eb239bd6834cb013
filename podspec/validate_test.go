package podspec

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/yaml"
)

// podOf decodes a pod and sets its defaults. A spec without containers gets a container "main".
func podOf(t testing.TB, spec string) *corev1.Pod {
	t.Helper()
	pod := &corev1.Pod{}
	pod.Name, pod.Namespace = "web", "default"
	if err := yaml.UnmarshalStrict([]byte(spec), &pod.Spec); err != nil {
		t.Fatalf("test's own manifest: %v\n%s", err, spec)
	}
	if pod.Spec.Containers == nil {
		pod.Spec.Containers = []corev1.Container{{Name: "main", Image: "example.com/main:1"}}
	}
	SetDefaults(pod)
	return pod
}

// validationCase is a pod with the expected errors, as "path: part of the message". Without errors
// the pod is valid.
type validationCase struct {
	sentence, spec string
	want           []string
}

func validateCases(t *testing.T, rows []validationCase) {
	t.Helper()
	for _, row := range rows {
		t.Run(row.sentence, func(t *testing.T) {
			expectErrors(t, Validate(podOf(t, row.spec)), row.want)
		})
	}
}

// expectErrors expects exactly one error for each line.
func expectErrors(t *testing.T, errs field.ErrorList, want []string) {
	t.Helper()
	left := append(field.ErrorList{}, errs...)
	for _, w := range want {
		path, words, _ := strings.Cut(w, ": ")
		found := false
		for i, e := range left {
			if e.Field == path && strings.Contains(e.ErrorBody(), words) {
				left = append(left[:i], left[i+1:]...)
				found = true
				break
			}
		}
		if !found {
			t.Errorf("no error %q in %v", w, errs)
		}
	}
	if len(left) > 0 {
		t.Errorf("unexpected errors: %v", left)
	}
}

// one returns a pod spec with one container with the given fields.
func one(c string) string { return "containers: [{name: main, image: x:1, " + c + "}]" }

func TestValidateMetadata(t *testing.T) {
	pod := podOf(t, "{}")
	expectErrors(t, Validate(pod), nil)
	pod.Name, pod.Namespace = "", ""
	pod.Labels = map[string]string{"bad key": "x", "a": "bad value"}
	pod.Annotations = map[string]string{"container.apparmor.security.beta.kubernetes.io/ghost": "localhost/"}
	expectErrors(t, Validate(pod), []string{
		"metadata.name: name or generateName is required",
		"metadata.namespace: Required",
		"metadata.labels: bad key",
		"metadata.labels: bad value",
		"metadata.annotations[container.apparmor.security.beta.kubernetes.io/ghost]: container not found",
		"metadata.annotations[container.apparmor.security.beta.kubernetes.io/ghost]: must be runtime/default",
	})
	pod = podOf(t, "{}")
	pod.Name = "Web_1"
	expectErrors(t, Validate(pod), []string{"metadata.name: RFC 1123 subdomain"})
}

func TestValidateContainers(t *testing.T) {
	validateCases(t, []validationCase{
		{"a pod needs a container", "containers: []", []string{"spec.containers: Required"}},
		{"a container needs a name", "containers: [{image: x}]", []string{"spec.containers[0].name: Required"}},
		{
			"a name is a DNS label",
			"containers: [{name: Main_1, image: x}]",
			[]string{"spec.containers[0].name: RFC 1123 label"},
		},
		{"a name is used once among main containers", "containers: [{name: a, image: x}, {name: a, image: x}]",
			[]string{"spec.containers[1].name: Duplicate"}},
		{"a name is used once among init and main containers", "{initContainers: [{name: main, image: x}]}",
			[]string{"spec.containers[0].name: Duplicate"}},
		{"a name is used once among ephemeral and main containers", "{ephemeralContainers: [{name: main, image: x}]}",
			[]string{"spec.ephemeralContainers[0].name: Duplicate"}},
		{"a container needs an image", "containers: [{name: a}]", []string{"spec.containers[0].image: Required"}},
		{
			"an image has no outer whitespace",
			"containers: [{name: a, image: ' x:1'}]",
			[]string{"spec.containers[0].image: whitespace"},
		},
		{
			"a pull policy is one of three",
			one("imagePullPolicy: Sometimes"),
			[]string{"spec.containers[0].imagePullPolicy: Unsupported value"},
		},
		{"a termination message policy is one of two", one("terminationMessagePolicy: Logs"),
			[]string{"spec.containers[0].terminationMessagePolicy: Unsupported value"}},

		{
			"an init container has no probe",
			"{initContainers: [{name: i, image: x, readinessProbe: {exec: {command: [a]}}}]}",
			[]string{"spec.initContainers[0].readinessProbe: without restartPolicy=Always"},
		},
		{"an init container has no hooks", "{initContainers: [{name: i, image: x, lifecycle: {}}]}",
			[]string{"spec.initContainers[0].lifecycle: without restartPolicy=Always"}},
		{
			"a sidecar has probes and hooks",
			"{initContainers: [{name: i, image: x, restartPolicy: Always, lifecycle: {preStop: {exec: {command: " +
				"[a]}}}, livenessProbe: {exec: {command: [a]}}}]}",
			nil,
		},
		{
			"a sidecar's probe is validationCase too",
			"{initContainers: [{name: i, image: x, restartPolicy: Always, livenessProbe: {}}]}",
			[]string{"spec.initContainers[0].livenessProbe: must specify one of"},
		},
		{
			"a container's restart policy is one of three",
			one("restartPolicy: Sometimes"),
			[]string{"spec.containers[0].restartPolicy: Unsupported value"},
		},
		{
			"restart rules need a restart policy",
			one("restartPolicyRules: [{action: Restart, exitCodes: {operator: In, values: [1]}}]"),
			[]string{"spec.containers[0].restartPolicy: Required"},
		},
		{
			"a restart rule is whole",
			one(
				"restartPolicy: Never, restartPolicyRules: [{action: Stop}, {action: Restart, exitCodes: {operator: " +
					"Is, values: [1, 1]}}]",
			),
			[]string{
				"spec.containers[0].restartPolicyRules[0].action: Unsupported",
				"spec.containers[0].restartPolicyRules[0].exitCodes: Required",
				"spec.containers[0].restartPolicyRules[1].exitCodes.operator: Unsupported",
				"spec.containers[0].restartPolicyRules[1].exitCodes.values[1]: Duplicate",
			},
		},
		{
			"a good restart rule is valid",
			one(
				"restartPolicy: Never, restartPolicyRules: [{action: Restart, exitCodes: {operator: NotIn, " +
					"values: [0, 1]}}]",
			),
			nil,
		},

		{
			"an ephemeral container has no ports",
			"{ephemeralContainers: [{name: e, image: x, ports: [{containerPort: 80}]}]}",
			[]string{"spec.ephemeralContainers[0].ports: Ephemeral Container"},
		},
		{
			"an ephemeral container has no resources",
			"{ephemeralContainers: [{name: e, image: x, resources: {limits: {cpu: 1}, requests: {cpu: 1}}}]}",
			[]string{"spec.ephemeralContainers[0].resources: Ephemeral Container"},
		},
		{
			"an ephemeral container mounts whole volumes",
			"{volumes: [{name: v}], ephemeralContainers: [{name: e, image: x, volumeMounts: [{name: v, mountPath: " +
				"/v, subPath: a}]}]}",
			[]string{"spec.ephemeralContainers[0].volumeMounts[0].subPath: Ephemeral Container"},
		},
		{
			"an ephemeral container's target is there",
			"{ephemeralContainers: [{name: e, image: x, targetContainerName: ghost}]}",
			[]string{"spec.ephemeralContainers[0].targetContainerName: Not found"},
		},
		{
			"an ephemeral container may name a target",
			"{ephemeralContainers: [{name: e, image: x, targetContainerName: main}]}",
			nil,
		},
	})
}

func TestValidatePorts(t *testing.T) {
	validateCases(t, []validationCase{
		{
			"good ports are valid",
			one("ports: [{name: http, containerPort: 80, hostPort: 8080}, {containerPort: 80, protocol: UDP}]"),
			nil,
		},
		{
			"a port has a number",
			one("ports: [{name: http}]"),
			[]string{"spec.containers[0].ports[0].containerPort: Required"},
		},
		{
			"a port is at most 65535",
			one("ports: [{containerPort: 65536}]"),
			[]string{"spec.containers[0].ports[0].containerPort: between 1 and 65535"},
		},
		{
			"a host port is at most 65535",
			one("ports: [{containerPort: 1, hostPort: 70000}]"),
			[]string{"spec.containers[0].ports[0].hostPort: between 1 and 65535"},
		},
		{
			"a port's name is short",
			one("ports: [{name: much-too-long-name, containerPort: 1}]"),
			[]string{"spec.containers[0].ports[0].name: 15"},
		},
		{
			"a port's name is used once",
			one("ports: [{name: a, containerPort: 1}, {name: a, containerPort: 2}]"),
			[]string{"spec.containers[0].ports[1].name: Duplicate"},
		},
		{
			"a protocol is one of three",
			one("ports: [{containerPort: 1, protocol: ICMP}]"),
			[]string{"spec.containers[0].ports[0].protocol: Unsupported"},
		},
		{
			"a host address is an address",
			one("ports: [{containerPort: 1, hostPort: 1, hostIP: here}]"),
			[]string{"spec.containers[0].ports[0].hostIP: valid IP"},
		},
		{
			"a host port is taken once",
			"containers: [{name: a, image: x, ports: [{containerPort: 1, hostPort: 80}]}, {name: b, image: x, ports: " +
				"[{containerPort: 2, hostPort: 80, hostIP: 0.0.0.0}]}]",
			[]string{"spec.containers[1].ports[0].hostPort: Duplicate"},
		},
		{
			"a host port may be taken for two protocols",
			one("ports: [{containerPort: 1, hostPort: 80}, {containerPort: 1, hostPort: 80, protocol: UDP}]"),
			nil,
		},
		{
			"an init container may use a main container's host port",
			"{initContainers: [{name: i, image: x, ports: [{containerPort: 1, hostPort: 80}]}], containers: [{name: " +
				"a, image: x, ports: [{containerPort: 1, hostPort: 80}]}]}",
			nil,
		},
		{
			"in the host's network the ports are the same",
			"{hostNetwork: true, " + one("ports: [{containerPort: 1, hostPort: 2}]") + "}",
			[]string{"spec.containers[0].ports[0].hostPort: must match"},
		},
		{
			"in the host's network the host port follows",
			"{hostNetwork: true, " + one("ports: [{containerPort: 1}]") + "}",
			nil,
		},
	})
}

func TestValidateEnv(t *testing.T) {
	validateCases(t, []validationCase{
		{"a variable may have any printable name", one(`env: [{name: "a-b.c d", value: x}]`), nil},
		{"a variable's name has no =", one(`env: [{name: "a=b"}]`), []string{"spec.containers[0].env[0].name: ="}},
		{"a variable has a name", one("env: [{value: x}]"), []string{"spec.containers[0].env[0].name: Required"}},
		{
			"a variable has a value or a source",
			one("env: [{name: a, value: x, valueFrom: {fieldRef: {fieldPath: metadata.name}}}]"),
			[]string{"spec.containers[0].env[0].valueFrom: `value` is not empty"},
		},
		{
			"a source is one of five",
			one("env: [{name: a, valueFrom: {}}]"),
			[]string{"spec.containers[0].env[0].valueFrom: must specify one of"},
		},
		{
			"two sources are one too many",
			one(
				"env: [{name: a, valueFrom: {fieldRef: {fieldPath: metadata.name}, secretKeyRef: {name: s, key: k}}}]",
			),
			[]string{"spec.containers[0].env[0].valueFrom: more than one"},
		},
		{
			"a field is named",
			one("env: [{name: a, valueFrom: {fieldRef: {}}}]"),
			[]string{"spec.containers[0].env[0].valueFrom.fieldRef.fieldPath: Required"},
		},
		{
			"a field must be one of the known",
			one("env: [{name: a, valueFrom: {fieldRef: {fieldPath: spec.hostname}}}]"),
			[]string{"spec.containers[0].env[0].valueFrom.fieldRef.fieldPath: Unsupported"},
		},
		{"all labels fit no variable", one("env: [{name: a, valueFrom: {fieldRef: {fieldPath: metadata.labels}}}]"),
			[]string{"spec.containers[0].env[0].valueFrom.fieldRef.fieldPath: Unsupported"}},
		{"one label does", one(`env: [{name: a, valueFrom: {fieldRef: {fieldPath: "metadata.labels['app']"}}}]`), nil},
		{
			"a label's key is a label key",
			one(`env: [{name: a, valueFrom: {fieldRef: {fieldPath: "metadata.labels['a b']"}}}]`),
			[]string{"spec.containers[0].env[0].valueFrom.fieldRef.fieldPath: name part"},
		},
		{"a name has no key", one(`env: [{name: a, valueFrom: {fieldRef: {fieldPath: "metadata.name['x']"}}}]`),
			[]string{"spec.containers[0].env[0].valueFrom.fieldRef.fieldPath: only metadata.labels"}},
		{
			"a field's API version is v1",
			one("env: [{name: a, valueFrom: {fieldRef: {apiVersion: v2, fieldPath: metadata.name}}}]"),
			[]string{"spec.containers[0].env[0].valueFrom.fieldRef.apiVersion: Unsupported"},
		},
		{"a resource is known", one("env: [{name: a, valueFrom: {resourceFieldRef: {resource: limits.gpu}}}]"),
			[]string{"spec.containers[0].env[0].valueFrom.resourceFieldRef.resource: Unsupported"}},
		{
			"a divisor is a unit",
			one("env: [{name: a, valueFrom: {resourceFieldRef: {resource: limits.memory, divisor: 3}}}]"),
			[]string{"spec.containers[0].env[0].valueFrom.resourceFieldRef.divisor: only divisor's values"},
		},
		{
			"a CPU's divisor is a core or a thousandth",
			one("env: [{name: a, valueFrom: {resourceFieldRef: {resource: limits.cpu, divisor: 1m}}}]"),
			nil,
		},
		{
			"a resource's container is there",
			one("env: [{name: a, valueFrom: {resourceFieldRef: {containerName: ghost, resource: limits.cpu}}}]"),
			[]string{"spec.containers[0].env[0].valueFrom.resourceFieldRef.containerName: Not found"},
		},
		{"a key is named", one("env: [{name: a, valueFrom: {configMapKeyRef: {name: c}}}]"),
			[]string{"spec.containers[0].env[0].valueFrom.configMapKeyRef.key: Required"}},
		{"a Secret is named", one("env: [{name: a, valueFrom: {secretKeyRef: {key: k}}}]"),
			[]string{"spec.containers[0].env[0].valueFrom.secretKeyRef.name: Required"}},
		{
			"a file's volume is an emptyDir",
			"{volumes: [{name: v, hostPath: {path: /v}}], " + one(
				"env: [{name: a, valueFrom: {fileKeyRef: {volumeName: v, path: ../x, key: k}}}]",
			) + "}",
			[]string{
				"spec.containers[0].env[0].valueFrom.fileKeyRef.volumeName: emptyDir",
				"spec.containers[0].env[0].valueFrom.fileKeyRef.path: '..'",
			},
		},
		{"envFrom is one of two", one("envFrom: [{prefix: 'a='}]"),
			[]string{"spec.containers[0].envFrom[0].prefix: =", "spec.containers[0].envFrom[0]: must specify one of"}},
		{
			"envFrom names its object",
			one("envFrom: [{configMapRef: {}}]"),
			[]string{"spec.containers[0].envFrom[0].configMapRef.name: Required"},
		},
	})
}

func TestValidateMounts(t *testing.T) {
	with := func(mount, rest string) string {
		return "{volumes: [{name: v}, {name: w}], " + one("volumeMounts: ["+mount+"]"+rest) + "}"
	}
	const m = "spec.containers[0].volumeMounts[0]"
	validateCases(t, []validationCase{
		{
			"a mount is valid",
			with("{name: v, mountPath: /v, subPath: a/b, readOnly: true, recursiveReadOnly: Enabled}", ""),
			nil,
		},
		{"the volume of a mount exists", with("{name: ghost, mountPath: /v}", ""), []string{m + ".name: Not found"}},
		{"a mount names its volume", with("{mountPath: /v}", ""), []string{m + ".name: Required"}},
		{"a mount has a path", with("{name: v}", ""), []string{m + ".mountPath: Required"}},
		{"mount paths are unique", with("{name: v, mountPath: /v}, {name: w, mountPath: /v}", ""),
			[]string{"spec.containers[0].volumeMounts[1].mountPath: must be unique"}},
		{
			"a sub-path is relative",
			with("{name: v, mountPath: /v, subPath: /etc}", ""),
			[]string{m + ".subPath: relative"},
		},
		{
			"a sub-path does not lead up",
			with("{name: v, mountPath: /v, subPath: a/../b}", ""),
			[]string{m + ".subPath: '..'"},
		},
		{"a sub-path may hold dots", with("{name: v, mountPath: /v, subPath: a..b}", ""), nil},
		{
			"an expression does not lead up",
			with("{name: v, mountPath: /v, subPathExpr: ../$(A)}", ""),
			[]string{m + ".subPathExpr: '..'"},
		},
		{
			"subPath and subPathExpr are mutually exclusive",
			with("{name: v, mountPath: /v, subPath: a, subPathExpr: b}", ""),
			[]string{m + ".subPathExpr: mutually exclusive"},
		},
		{
			"propagation is one of three",
			with("{name: v, mountPath: /v, mountPropagation: Both}", ""),
			[]string{m + ".mountPropagation: Unsupported"},
		},
		{
			"propagation out needs privileges",
			with("{name: v, mountPath: /v, mountPropagation: Bidirectional}", ""),
			[]string{m + ".mountPropagation: privileged"},
		},
		{
			"a privileged container propagates out",
			with("{name: v, mountPath: /v, mountPropagation: Bidirectional}", ", securityContext: {privileged: true}"),
			nil,
		},
		{
			"recursive read-only is read-only",
			with("{name: v, mountPath: /v, recursiveReadOnly: IfPossible}", ""),
			[]string{m + ".recursiveReadOnly: readOnly is true"},
		},
		{
			"recursive read-only does not propagate",
			with(
				"{name: v, mountPath: /v, readOnly: true, recursiveReadOnly: Enabled, mountPropagation: "+
					"HostToContainer}",
				"",
			),
			[]string{m + ".recursiveReadOnly: mountPropagation is None"},
		},
		{
			"recursive read-only is one of three",
			with("{name: v, mountPath: /v, recursiveReadOnly: Yes}", ""),
			[]string{m + ".recursiveReadOnly: Unsupported"},
		},
		{
			"bind options are known and given once",
			with("{name: v, mountPath: /v, bindMountOptions: [noexec, noexec, rw]}", ""),
			[]string{m + ".bindMountOptions[1]: Duplicate", m + ".bindMountOptions[2]: Unsupported"},
		},
		{"a device belongs to a claim",
			with("{name: v, mountPath: /v}", ", volumeDevices: [{name: v, devicePath: /v}]"),
			[]string{
				"spec.containers[0].volumeDevices[0].name: PersistentVolumeClaim",
				"spec.containers[0].volumeDevices[0].devicePath: must not already exist",
			}},
	})
}

func TestValidateSpec(t *testing.T) {
	validateCases(t, []validationCase{
		{"a restart policy is one of three", "restartPolicy: Sometimes", []string{"spec.restartPolicy: Unsupported"}},
		{
			"a deadline is at least a second",
			"activeDeadlineSeconds: 0",
			[]string{"spec.activeDeadlineSeconds: between 1"},
		},
		{
			"a grace period is not negative",
			"terminationGracePeriodSeconds: -1",
			[]string{"spec.terminationGracePeriodSeconds: greater than or equal to 0"},
		},
		{
			"names of others are DNS names",
			"{serviceAccountName: A_b, nodeName: A_b, priorityClassName: A_b, runtimeClassName: A_b, " +
				"imagePullSecrets: [{name: A_b}]}",
			[]string{
				"spec.serviceAccountName: RFC 1123",
				"spec.nodeName: RFC 1123",
				"spec.priorityClassName: RFC 1123",
				"spec.runtimeClassName: RFC 1123",
				"spec.imagePullSecrets[0].name: RFC 1123",
			},
		},
		{
			"a preemption policy is one of two",
			"preemptionPolicy: Maybe",
			[]string{"spec.preemptionPolicy: Unsupported"},
		},
		{
			"a readiness gate is a qualified name",
			"readinessGates: [{conditionType: 'a b'}]",
			[]string{"spec.readinessGates[0].conditionType: name part"},
		},

		{"a DNS policy is one of four", "dnsPolicy: Mine", []string{"spec.dnsPolicy: Unsupported"}},
		{"DNS policy None requires a config", "dnsPolicy: None", []string{"spec.dnsConfig: must provide `dnsConfig`"}},
		{
			"policy None brings a server",
			"{dnsPolicy: None, dnsConfig: {searches: [a.b]}}",
			[]string{"spec.dnsConfig.nameservers: at least one"},
		},
		{
			"a resolver takes three servers",
			"dnsConfig: {nameservers: [1.1.1.1, 1.1.1.2, 1.1.1.3, 1.1.1.4]}",
			[]string{"spec.dnsConfig.nameservers: more than 3"},
		},
		{
			"a server is an address",
			"dnsConfig: {nameservers: [dns.example.com]}",
			[]string{"spec.dnsConfig.nameservers[0]: valid IP"},
		},
		{
			"a search path is a name",
			"dnsConfig: {searches: ['a b', 'a.b.', '.', _tcp.x]}",
			[]string{"spec.dnsConfig.searches[0]: RFC 1123"},
		},
		{
			"a resolver takes 2048 characters of search paths",
			"dnsConfig: {searches: [" + strings.Repeat(
				"a",
				60,
			) + strings.Repeat(
				", "+strings.Repeat("a", 63)+"."+strings.Repeat("a", 63)+"."+strings.Repeat("a", 63),
				11,
			) + "]}",
			[]string{"spec.dnsConfig.searches: more than 2048"},
		},
		{
			"a resolver takes 32 search paths",
			"dnsConfig: {searches: [" + strings.Repeat("a, ", 32) + "a]}",
			[]string{"spec.dnsConfig.searches: more than 32"},
		},
		{
			"a resolver option has a name",
			"dnsConfig: {options: [{value: x}]}",
			[]string{"spec.dnsConfig.options[0].name: Required"},
		},

		{
			"host names are labels",
			"{hostname: a.b, subdomain: A}",
			[]string{"spec.hostname: dots", "spec.subdomain: RFC 1123 label"},
		},
		{"a hostname override excludes other fields",
			"{hostnameOverride: a.b, setHostnameAsFQDN: true, hostNetwork: true}",
			[]string{"spec.hostnameOverride: setHostnameAsFQDN", "spec.hostnameOverride: hostNetwork"}},
		{"a host alias has an address and names", "hostAliases: [{ip: x, hostnames: ['a b']}]",
			[]string{"spec.hostAliases[0].ip: valid IP", "spec.hostAliases[0].hostnames[0]: RFC 1123"}},
		{
			"one process namespace at a time",
			"{shareProcessNamespace: true, hostPID: true}",
			[]string{"spec.shareProcessNamespace: cannot both"},
		},
		{"a user namespace requires other namespaces",
			"{hostUsers: false, hostNetwork: true, hostPID: true, hostIPC: true}",
			[]string{"spec.hostUsers: hostNetwork", "spec.hostUsers: hostPID", "spec.hostUsers: hostIPC"}},
		{"an operating system is one of two", "os: {name: plan9}", []string{"spec.os.name: Unsupported"}},
		{
			"a Linux pod has no Windows options",
			"{os: {name: linux}, securityContext: {windowsOptions: {}}, containers: [{name: a, image: x, " +
				"securityContext: {windowsOptions: {}}}]}",
			[]string{
				"spec.securityContext.windowsOptions: linux",
				"spec.containers[0].securityContext.windowsOptions: linux",
			},
		},
		{
			"a claim has one source and a name of its own",
			"resourceClaims: [{name: a}, {name: a, resourceClaimName: b}]",
			[]string{"spec.resourceClaims[0]: must specify one of", "spec.resourceClaims[1].name: Duplicate"},
		},
	})
}
