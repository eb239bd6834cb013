package podspec

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"
)

// Examples of the Kubernetes documentation must be valid and fully supported.
func TestDocumentationExamplesAreValid(t *testing.T) {
	for sentence, spec := range map[string]string{
		"a web server": `containers: [{name: nginx, image: "nginx:1.14.2", ports: ` +
			`[{containerPort: 80}]}]`,
		"a memory limit": `containers: [{name: memory-demo-ctr, image: polinux/stress, resources: ` +
			`{requests: {memory: 100Mi}, limits: {memory: 200Mi}}, command: [stress], args: ["--vm", "1", ` +
			`"--vm-bytes", "150M", "--vm-hang", "1"]}]`,
		"two containers with limits": `containers: [{name: a, image: polinux/stress, resources: {requests: ` +
			`{memory: 100Mi}, limits: {memory: 200Mi}}}, {name: b, image: nginx, resources: {requests: {cpu: 250m}, ` +
			`limits: {cpu: 500m}}}]`,
		"an init container that waits": `{containers: [{name: myapp, image: "busybox:1.28", command: [sh, -c, ` +
			`"sleep 3600"]}], initContainers: [{name: init, image: "busybox:1.28", command: [sh, -c, "true"]}]}`,
		"a sidecar that ships logs": `{containers: [{name: a, image: x, volumeMounts: [{name: data, ` +
			`mountPath: /opt}]}], initContainers: [{name: logs, image: x, restartPolicy: Always, volumeMounts: ` +
			`[{name: data, mountPath: /opt}]}], volumes: [{name: data, emptyDir: {}}]}`,
		"variables from a ConfigMap": `{containers: [{name: a, image: x, envFrom: [{configMapRef: {name: ` +
			`special-config}}], env: [{name: KEY, valueFrom: {configMapKeyRef: {name: special-config, key: ` +
			`SPECIAL_LEVEL}}}]}], restartPolicy: Never}`,
		"the downward API in files": `{containers: [{name: c, image: x, volumeMounts: [{name: podinfo, ` +
			`mountPath: /etc/podinfo}]}], volumes: [{name: podinfo, downwardAPI: {items: [{path: labels, fieldRef: ` +
			`{fieldPath: metadata.labels}}, {path: cpu_limit, resourceFieldRef: {containerName: c, resource: ` +
			`limits.cpu, divisor: 1m}}]}}]}`,
		"a security context": `{securityContext: {runAsUser: 1000, runAsGroup: 3000, fsGroup: 2000, ` +
			`supplementalGroups: [4000]}, volumes: [{name: v, emptyDir: {}}], containers: [{name: a, image: x, ` +
			`volumeMounts: [{name: v, mountPath: /data}], securityContext: {allowPrivilegeEscalation: false, ` +
			`capabilities: {add: [NET_ADMIN], drop: [ALL]}, seccompProfile: {type: Localhost, localhostProfile: ` +
			`profiles/audit.json}}}]}`,
		"addresses for names": `{restartPolicy: Never, hostAliases: [{ip: 127.0.0.1, hostnames: ` +
			`[foo.local, bar.local]}], containers: [{name: cat-hosts, image: "busybox:1.28", command: [cat, ` +
			`/etc/hosts]}]}`,
		"DNS of one's own": `{containers: [{name: test, image: nginx}], dnsPolicy: None, dnsConfig: ` +
			`{nameservers: [192.0.2.1], searches: [ns1.svc.cluster-domain.example, my.dns.search.suffix], options: ` +
			`[{name: ndots, value: "2"}, {name: edns0}]}}`,
		"a sub-path that is an expression": `{containers: [{name: a, image: x, env: [{name: POD_NAME, valueFrom: ` +
			`{fieldRef: {apiVersion: v1, fieldPath: metadata.name}}}], volumeMounts: [{name: w, mountPath: /logs, ` +
			`subPathExpr: $(POD_NAME)}]}], restartPolicy: Never, volumes: [{name: w, hostPath: {path: ` +
			`/var/log/pods}}]}`,
		"sysctls": `{securityContext: {sysctls: [{name: kernel.shm_rmid_forced, value: "0"}, {name: ` +
			`net.core.somaxconn, value: "1024"}]}, containers: [{name: a, image: x}]}`,
	} {
		t.Run(sentence, func(t *testing.T) {
			pod := podOf(t, spec)
			expectErrors(t, Validate(pod), nil)
			warnings, rejected := UnsupportedFields(pod)
			expectErrors(t, rejected, nil)
			if len(warnings) > 0 {
				t.Errorf("warnings: %q", warnings)
			}
		})
	}
}

func TestGoldenPodsAreValid(t *testing.T) {
	for _, raw := range goldenFiles(t) {
		for _, text := range splitDocuments(raw) {
			var pod corev1.Pod
			if err := yaml.UnmarshalStrict(text, &pod); err != nil {
				t.Fatal(err)
			}
			SetDefaults(&pod)
			expectErrors(t, Validate(&pod), nil)
		}
	}
}
