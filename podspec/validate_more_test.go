package podspec

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

func TestValidateVolumes(t *testing.T) {
	const v = "spec.volumes[0]"
	vol := func(s string) string { return "volumes: [{name: v, " + s + "}]" }
	validateCases(t, []validationCase{
		{"a volume has a name", "volumes: [{emptyDir: {}}]", []string{v + ".name: Required"}},
		{"a volume's name is a label", "volumes: [{name: A}]", []string{v + ".name: RFC 1123 label"}},
		{
			"volume names are unique",
			"volumes: [{name: a}, {name: a}]",
			[]string{"spec.volumes[1].name: Duplicate"},
		},
		{"a volume has one source", vol("emptyDir: {}, hostPath: {path: /x}"), []string{v + ".emptyDir: more than 1"}},
		{"a host path is given", vol("hostPath: {}"), []string{v + ".hostPath.path: Required"}},
		{"a host path does not lead up", vol("hostPath: {path: /a/../b}"), []string{v + ".hostPath.path: '..'"}},
		{
			"a host path's type is known",
			vol("hostPath: {path: /a, type: Pipe}"),
			[]string{v + ".hostPath.type: Unsupported"},
		},
		{
			"a size limit is not negative",
			vol("emptyDir: {sizeLimit: -1}"),
			[]string{v + ".emptyDir.sizeLimit: not negative"},
		},
		{"a medium is known", vol("emptyDir: {medium: Tape}"), []string{v + ".emptyDir.medium: Unsupported"}},
		{
			"huge pages have a size",
			vol("emptyDir: {medium: HugePages-x}"),
			[]string{v + ".emptyDir.medium: positive quantity"},
		},
		{"huge pages are a medium", vol("emptyDir: {medium: HugePages-2Mi}"), nil},
		{"an emptyDir's mode has four digits", vol("emptyDir: {mode: 1024}"), []string{v + ".emptyDir.mode: 01777"}},
		{"a ConfigMap is named", vol("configMap: {}"), []string{v + ".configMap.name: Required"}},
		{"a Secret is named", vol("secret: {}"), []string{v + ".secret.secretName: Required"}},
		{
			"a mode has three digits",
			vol("secret: {secretName: s, defaultMode: 512, items: [{key: k, path: p, mode: -1}]}"),
			[]string{v + ".secret.defaultMode: 0777", v + ".secret.items[0].mode: 0777"},
		},
		{"an item has a key and a path", vol("configMap: {name: c, items: [{}]}"),
			[]string{v + ".configMap.items[0].key: Required", v + ".configMap.items[0].path: Required"}},
		{
			"an item stays in the volume",
			vol("configMap: {name: c, items: [{key: k, path: /p}, {key: k, path: a/../../p}, {key: k, path: ..p}]}"),
			[]string{
				v + ".configMap.items[0].path: relative",
				v + ".configMap.items[1].path: '..'",
				v + ".configMap.items[2].path: start with",
			},
		},
		{
			"a downward API file has one source",
			vol("downwardAPI: {items: [{path: p}]}"),
			[]string{v + ".downwardAPI.items[0]: must specify one of"},
		},
		{
			"a downward API file with all labels",
			vol("downwardAPI: {items: [{path: p, fieldRef: {fieldPath: metadata.labels}}]}"),
			nil,
		},
		{
			"a downward API file cannot contain the pod IP",
			vol("downwardAPI: {items: [{path: p, fieldRef: {fieldPath: status.podIP}}]}"),
			[]string{v + ".downwardAPI.items[0].fieldRef.fieldPath: Unsupported"},
		},
		{
			"a resource in a file requires a container name",
			vol("downwardAPI: {items: [{path: p, resourceFieldRef: {resource: limits.cpu}}]}"),
			[]string{v + ".downwardAPI.items[0].resourceFieldRef.containerName: Required"},
		},
		{
			"a projected source has one type",
			vol("projected: {sources: [{}]}"),
			[]string{v + ".projected.sources[0]: must specify one of"},
		},
		{
			"projected sources write different files",
			vol(
				"projected: {sources: [{secret: {name: a, items: [{key: k, path: p}]}}, {configMap: {name: a, items: " +
					"[{key: k, path: p}]}}]}",
			),
			[]string{v + ".projected.sources[1].configMap.items[0].path: conflicting duplicate paths"},
		},
		{
			"a token is valid for ten minutes",
			vol("projected: {sources: [{serviceAccountToken: {path: t, expirationSeconds: 599}}]}"),
			[]string{v + ".projected.sources[0].serviceAccountToken.expirationSeconds: between 600"},
		},
		{"a trust bundle by name has no selector", vol("projected: {sources: [{clusterTrustBundle: {path: t, " +
			"name: b, labelSelector: {matchLabels: {a: b}}}}]}"),
			[]string{v + ".projected.sources[0].clusterTrustBundle.labelSelector: must be unset"}},
		{"a trust bundle has a name or a signer", vol("projected: {sources: [{clusterTrustBundle: {path: t}}]}"),
			[]string{v + ".projected.sources[0].clusterTrustBundle: must specify one of"}},
		{
			"a pod certificate has a path",
			vol("projected: {sources: [{podCertificate: {signerName: a/b, keyType: RSA1}}]}"),
			[]string{
				v + ".projected.sources[0].podCertificate.keyType: Unsupported",
				v + ".projected.sources[0].podCertificate: at least one",
			},
		},
		{
			"a claim is named",
			vol("persistentVolumeClaim: {claimName: ''}"),
			[]string{v + ".persistentVolumeClaim.claimName: Required"},
		},
		{"an image is named", vol("image: {}"), []string{v + ".image.reference: Required"}},
		{
			"an ephemeral claim template is complete",
			vol("ephemeral: {volumeClaimTemplate: {metadata: {labels: {a: _}}, spec: {}}}"),
			[]string{
				v + ".ephemeral.volumeClaimTemplate.metadata.labels: valid label",
				v + ".ephemeral.volumeClaimTemplate.spec.accessModes: Required",
				v + ".ephemeral.volumeClaimTemplate.spec.resources[storage]: Required",
			},
		},
		{
			"a valid ephemeral claim template",
			vol(
				"ephemeral: {volumeClaimTemplate: {spec: {accessModes: [ReadWriteOnce], resources: {requests: " +
					"{storage: 1Gi}}}}}",
			),
			nil,
		},
		{
			"iSCSI requires a portal and an IQN",
			vol("iscsi: {}"),
			[]string{v + ".iscsi.targetPortal: Required", v + ".iscsi.iqn: Required"},
		},
		{
			"iSCSI names and LUN are validated",
			vol(
				"iscsi: {targetPortal: a, iqn: 'iqn.26-01.example:a', lun: 256, initiatorName: eui.1, " +
					"chapAuthSession: true}",
			),
			[]string{
				v + ".iscsi.iqn: begins with",
				v + ".iscsi.lun: between",
				v + ".iscsi.initiatorName: begins with",
				v + ".iscsi.secretRef: Required",
			},
		},
		{
			"valid iSCSI volume",
			vol(
				"iscsi: {targetPortal: a, iqn: 'iqn.2026-01.example.com:disk/1', initiatorName: eui.02004567A425678D}",
			),
			nil,
		},
		{
			"RBD requires monitors and an image",
			vol("rbd: {}"),
			[]string{v + ".rbd.monitors: Required", v + ".rbd.image: Required"},
		},
		{
			"Azure File requires a secret and a share",
			vol("azureFile: {}"),
			[]string{v + ".azureFile.secretName: Required", v + ".azureFile.shareName: Required"},
		},
		{"FlexVolume requires a driver and unreserved options",
			vol("flexVolume: {options: {a.kubernetes.io/b: c, d: e}}"),
			[]string{v + ".flexVolume.driver: Required", v + ".flexVolume.options[a.kubernetes.io/b]: reserved"}},
		{
			"Fibre Channel has WWNs or WWIDs", //nolint:misspell // the name of the protocol
			vol("fc: {targetWWNs: [a], wwids: [b]}"),
			[]string{v + ".fc.targetWWNs: ", v + ".fc.lun: Required"},
		},
		{"an EBS volume has a valid partition", vol("awsElasticBlockStore: {partition: 256}"),
			[]string{v + ".awsElasticBlockStore.volumeID: Required", v + ".awsElasticBlockStore.partition: between"}},
		{
			"an export has a server and an absolute path",
			vol("nfs: {server: '', path: x}"),
			[]string{v + ".nfs.server: Required", v + ".nfs.path: absolute"},
		},
	})
}

// The name of an ephemeral claim consists of the names of pod and volume.
func TestEphemeralClaimName(t *testing.T) {
	t.Parallel()
	pod := kept(
		t,
		"spec: {containers: [{name: c, image: a}], volumes: [{name: v, ephemeral: {volumeClaimTemplate: {spec: "+
			"{accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}}}}]}",
	)
	if errs := ValidateCreate(pod); len(errs) > 0 {
		t.Fatal(errs)
	}
	pod.Name = strings.Repeat("p", 253)
	if errs := ValidateCreate(pod); len(errs) != 1 || errs[0].Field != "spec.volumes[0].name" {
		t.Errorf("got %v", errs)
	}
}

func TestValidateProbesAndHooks(t *testing.T) {
	const c = "spec.containers[0]"
	validateCases(t, []validationCase{
		{
			"a complete probe is valid",
			one(
				"ports: [{containerPort: 80, name: http}], startupProbe: {httpGet: {port: http, httpHeaders: [{name: " +
					"Host, value: x}]}, terminationGracePeriodSeconds: 1}",
			),
			nil,
		},
		{
			"a named port must exist in the container",
			one(
				"ports: [{containerPort: 80, name: web}], livenessProbe: {httpGet: {port: http}}, readinessProbe: " +
					"{tcpSocket: {port: sql}}, startupProbe: {tcpSocket: {port: web}}",
			),
			[]string{
				c + ".livenessProbe.httpGet.port: must be the name of a port",
				c + ".readinessProbe.tcpSocket.port: must be the name of a port",
			},
		},
		{
			"a named port of a hook must exist in the container",
			one(
				"ports: [{containerPort: 80, name: web}], lifecycle: {postStart: {httpGet: {port: http, path: /}}, " +
					"preStop: {tcpSocket: {port: sql}}}",
			),
			[]string{
				c + ".lifecycle.postStart.httpGet.port: must be the name of a port",
				c + ".lifecycle.preStop.tcpSocket.port: must be the name of a port",
			},
		},
		{
			"existing named ports and any number are valid in hooks",
			one(
				"ports: [{containerPort: 80, name: web}], lifecycle: {postStart: {httpGet: {port: web, path: /}}, " +
					"preStop: {httpGet: {port: 81, path: /}}}",
			),
			nil,
		},
		{
			"a probe has one action",
			one("livenessProbe: {exec: {command: [a]}, tcpSocket: {port: 1}}"),
			[]string{c + ".livenessProbe: more than one"},
		},
		{
			"a command is required",
			one("livenessProbe: {exec: {}}"),
			[]string{c + ".livenessProbe.exec.command: Required"},
		},
		{
			"a port is a number in range",
			one("livenessProbe: {httpGet: {port: 0}}"),
			[]string{c + ".livenessProbe.httpGet.port: between 1"},
		},
		{
			"a port name is valid",
			one("livenessProbe: {tcpSocket: {port: '-'}}"),
			[]string{c + ".livenessProbe.tcpSocket.port: hyphen", c + ".livenessProbe.tcpSocket.port: letter"},
		},
		{
			"a scheme is one of two",
			one("livenessProbe: {httpGet: {port: 1, scheme: FTP}}"),
			[]string{c + ".livenessProbe.httpGet.scheme: Unsupported"},
		},
		{
			"a header has a name",
			one("livenessProbe: {httpGet: {port: 1, httpHeaders: [{name: 'a b', value: x}]}}"),
			[]string{c + ".livenessProbe.httpGet.httpHeaders[0].name: header"},
		},
		{
			"HTTP/2 requires plain HTTP",
			one("livenessProbe: {httpGet: {port: 1, scheme: HTTPS, protocol: HTTP2}}"),
			[]string{c + ".livenessProbe.httpGet.protocol: scheme HTTP"},
		},
		{
			"a gRPC port is in range",
			one("livenessProbe: {grpc: {port: 99999}}"),
			[]string{c + ".livenessProbe.grpc.port: between 1"},
		},
		{
			"no number is negative",
			one(
				"readinessProbe: {exec: {command: [a]}, initialDelaySeconds: -1, timeoutSeconds: -1, periodSeconds: " +
					"-1, successThreshold: -1, failureThreshold: -1}",
			),
			[]string{
				c + ".readinessProbe.initialDelaySeconds: greater than or equal to 0",
				c + ".readinessProbe.timeoutSeconds: greater than 0",
				c + ".readinessProbe.periodSeconds: greater than 0",
				c + ".readinessProbe.successThreshold: greater than 0",
				c + ".readinessProbe.failureThreshold: greater than 0",
			},
		},
		{
			"one success is enough to live",
			one("livenessProbe: {exec: {command: [a]}, successThreshold: 2}"),
			[]string{c + ".livenessProbe.successThreshold: must be 1"},
		},
		{"two successes may make ready", one("readinessProbe: {exec: {command: [a]}, successThreshold: 2}"), nil},
		{
			"readiness ends nothing",
			one("readinessProbe: {exec: {command: [a]}, terminationGracePeriodSeconds: 5}"),
			[]string{c + ".readinessProbe.terminationGracePeriodSeconds: must not be set"},
		},
		{
			"a probe's grace is more than zero",
			one("livenessProbe: {exec: {command: [a]}, terminationGracePeriodSeconds: 0}"),
			[]string{c + ".livenessProbe.terminationGracePeriodSeconds: greater than 0"},
		},

		{
			"a hook does one thing",
			one("lifecycle: {postStart: {}}"),
			[]string{c + ".lifecycle.postStart: must specify one of"},
		},
		{
			"a hook sleeps within the grace",
			one("lifecycle: {preStop: {sleep: {seconds: 31}}}"),
			[]string{c + ".lifecycle.preStop.sleep.seconds: terminationGracePeriodSeconds (30)"},
		},
		{"a hook may sleep all the grace", one("lifecycle: {preStop: {sleep: {seconds: 30}}}"), nil},
		{
			"a stop signal needs the system's name",
			one("lifecycle: {stopSignal: SIGUSR1}"),
			[]string{c + ".lifecycle.stopSignal: spec.os.name"},
		},
		{
			"a stop signal is known",
			"{os: {name: linux}, " + one("lifecycle: {stopSignal: SIGRTMIN+16}") + "}",
			[]string{c + ".lifecycle.stopSignal: Unsupported"},
		},
		{
			"a real-time signal is known",
			"{os: {name: linux}, " + one("lifecycle: {stopSignal: SIGRTMIN+15}") + "}",
			nil,
		},
	})
}

func TestStopSignals(t *testing.T) {
	for _, s := range []corev1.Signal{corev1.SIGABRT, corev1.SIGTERM, corev1.SIGXFSZ, corev1.SIGRTMIN,
		corev1.SIGRTMINPLUS1,
		corev1.SIGRTMINPLUS15, corev1.SIGRTMAXMINUS14, corev1.SIGRTMAXMINUS1, corev1.SIGRTMAX, corev1.SIGCLD,
		corev1.SIGPOLL} {
		if !isSignal(string(s)) {
			t.Errorf("signal %s is not valid, want valid", s)
		}
	}
	for _, s := range []string{"", "TERM", "SIGRTMIN+0", "SIGRTMIN+", "SIGRTMAX-15", "SIGRTMIN+01", "SIGRTMIN+-1",
		"SIGTERM "} {
		if isSignal(s) {
			t.Errorf("signal %q is valid, want invalid", s)
		}
	}
}

func TestValidateResources(t *testing.T) {
	const r = "spec.containers[0].resources"
	res := func(s string) string { return one("resources: {" + s + "}") }
	validateCases(t, []validationCase{
		{
			"requests within limits are valid",
			res("requests: {cpu: 100m, memory: 1Mi}, limits: {cpu: 1, memory: 1Mi, ephemeral-storage: 1Gi}"),
			nil,
		},
		{
			"a request is at most its limit",
			res("requests: {cpu: 2}, limits: {cpu: 1}"),
			[]string{r + ".requests[cpu]: less than or equal to cpu limit of 1"},
		},
		{
			"nothing is negative",
			res("requests: {memory: -1}"),
			[]string{r + ".requests[memory]: greater than or equal to 0"},
		},
		{"a resource is known", res("requests: {storage: 1}"), []string{r + ".requests[storage]: standard resource"}},
		{
			"a resource's name is qualified",
			res("requests: {'a/b/c': 1}, limits: {'a/b/c': 1}"),
			[]string{r + ".requests[a/b/c]: valid label key", r + ".limits[a/b/c]: valid label key"},
		},
		{
			"devices come whole",
			res("limits: {example.com/gpu: 500m}"),
			[]string{r + ".limits[example.com/gpu]: integer", r + ".requests[example.com/gpu]: integer"},
		},
		{
			"devices are limited",
			res("requests: {example.com/gpu: 1}"),
			[]string{r + ".limits[example.com/gpu]: non overcommit"},
		},
		{
			"devices are not overcommitted",
			res("requests: {example.com/gpu: 1}, limits: {example.com/gpu: 2}"),
			[]string{r + ".requests[example.com/gpu]: equal to"},
		},
		{"huge pages need CPU or memory", res("limits: {hugepages-2Mi: 4Mi}"), []string{r + ": HugePages require"}},
		{
			"huge pages come in pages",
			res("limits: {hugepages-2Mi: 3Mi, memory: 1Mi}"),
			[]string{r + ".limits[hugepages-2Mi]: multiple", r + ".requests[hugepages-2Mi]: multiple"},
		},
		{
			"a page has a size",
			res("limits: {hugepages-big: 2Mi, memory: 1Mi}"),
			[]string{
				r + ".limits[hugepages-big]: size of the pages",
				r + ".requests[hugepages-big]: size of the pages",
			},
		},
		{"huge pages are valid", res("limits: {hugepages-2Mi: 4Mi, memory: 1Mi}"), nil},
		{"a claim is the pod's", res("claims: [{name: c}]"), []string{r + ".claims[0].name: Not found"}},
		{
			"a resize policy is known and given once",
			one(
				"resizePolicy: [{resourceName: cpu, restartPolicy: NotRequired}, {resourceName: cpu, restartPolicy: " +
					"Maybe}, {resourceName: gpu, restartPolicy: NotRequired}]",
			),
			[]string{
				"spec.containers[0].resizePolicy[1].restartPolicy: Unsupported",
				"spec.containers[0].resizePolicy[1]: Duplicate",
				"spec.containers[0].resizePolicy[2].resourceName: Unsupported",
			},
		},
		{
			"what never restarts does not restart to resize",
			"{restartPolicy: Never, " + one(
				"resizePolicy: [{resourceName: cpu, restartPolicy: RestartContainer}]",
			) + "}",
			[]string{"spec.containers[0].resizePolicy[0].restartPolicy: NotRequired"},
		},

		{
			"pod-level resources are CPU, memory and huge pages",
			"resources: {limits: {ephemeral-storage: 1}}",
			[]string{"spec.resources.limits[ephemeral-storage]: Unsupported"},
		},
		{
			"a pod requests what its containers do",
			"{resources: {requests: {cpu: 1}}, " + res("requests: {cpu: 2}") + "}",
			[]string{"spec.resources.requests[cpu]: aggregate container requests of 2"},
		},
		{
			"a container is limited within its pod",
			"{resources: {limits: {cpu: 1}}, " + res("requests: {cpu: 1}, limits: {cpu: 2}") + "}",
			[]string{r + ".limits[cpu]: pod limits of 1"},
		},
		{
			"a pod has no claims of containers",
			"{resources: {claims: [{name: c}]}}",
			[]string{"spec.resources.claims: may not be set"},
		},
		{
			"overhead is not negative",
			"overhead: {cpu: -1}",
			[]string{"spec.overhead.limits[cpu]: greater than or equal to 0"},
		},
	})
}

func TestValidateSecurity(t *testing.T) {
	const c = "spec.containers[0].securityContext"
	own := func(s string) string { return one("securityContext: {" + s + "}") }
	all := func(s string) string { return "securityContext: {" + s + "}" }
	validateCases(t, []validationCase{
		{
			"IDs are numbers of 31 bits",
			all("runAsUser: -1, runAsGroup: 2147483648, fsGroup: -1, supplementalGroups: [0, -5]"),
			[]string{
				"spec.securityContext.runAsUser: between",
				"spec.securityContext.runAsGroup: between",
				"spec.securityContext.fsGroup: between",
				"spec.securityContext.supplementalGroups[1]: between",
			},
		},
		{
			"a container's IDs too",
			own("runAsUser: -1, runAsGroup: -1"),
			[]string{c + ".runAsUser: between", c + ".runAsGroup: between"},
		},
		{"policies are known", all("supplementalGroupsPolicy: A, fsGroupChangePolicy: B, seLinuxChangePolicy: C"),
			[]string{
				"spec.securityContext.supplementalGroupsPolicy: Unsupported",
				"spec.securityContext.fsGroupChangePolicy: Unsupported",
				"spec.securityContext.seLinuxChangePolicy: Unsupported",
			}},
		{
			"privileged is an escalation",
			own("privileged: true, allowPrivilegeEscalation: false"),
			[]string{c + ": privileged"},
		},
		{
			"CAP_SYS_ADMIN is an escalation",
			own("capabilities: {add: [CAP_SYS_ADMIN]}, allowPrivilegeEscalation: false"),
			[]string{c + ": CAP_SYS_ADMIN"},
		},
		{
			"a capability has a name",
			own("capabilities: {drop: ['']}"),
			[]string{c + ".capabilities.drop[0]: Required"},
		},
		{"an unmasked /proc requires a user namespace", own("procMount: Unmasked"),
			[]string{c + ".procMount: hostUsers"}},
		{"an unmasked /proc with a user namespace is valid", "{hostUsers: false, " + own("procMount: Unmasked") + "}",
			nil},
		{"a /proc is one of two", own("procMount: Half"), []string{c + ".procMount: Unsupported"}},
		{
			"a seccomp profile has a type",
			own("seccompProfile: {type: ''}"),
			[]string{c + ".seccompProfile.type: Required"},
		},
		{
			"a local profile is named",
			own("seccompProfile: {type: Localhost}"),
			[]string{c + ".seccompProfile.localhostProfile: must be set"},
		},
		{
			"a local profile lies below the profiles",
			own("seccompProfile: {type: Localhost, localhostProfile: ../x}"),
			[]string{c + ".seccompProfile.localhostProfile: descends"},
		},
		{
			"a local profile is relative",
			own("seccompProfile: {type: Localhost, localhostProfile: /x}"),
			[]string{c + ".seccompProfile.localhostProfile: descends"},
		},
		{
			"only a local profile is named",
			all("seccompProfile: {type: RuntimeDefault, localhostProfile: x}"),
			[]string{"spec.securityContext.seccompProfile.localhostProfile: only be set"},
		},
		{
			"an AppArmor profile is named",
			own("appArmorProfile: {type: Localhost, localhostProfile: ' '}"),
			[]string{c + ".appArmorProfile.localhostProfile: must be set"},
		},
		{
			"an AppArmor profile is not padded",
			own("appArmorProfile: {type: Localhost, localhostProfile: ' a'}"),
			[]string{c + ".appArmorProfile.localhostProfile: padded"},
		},
		{
			"an AppArmor type is known",
			all("appArmorProfile: {type: Mine}"),
			[]string{"spec.securityContext.appArmorProfile.type: Unsupported"},
		},

		{
			"sysctls are valid",
			all(
				"sysctls: [{name: net.ipv4.tcp_syncookies, value: '1'}, {name: net/ipv4/conf/eth0.1/rp_filter, " +
					"value: '1'}]",
			),
			nil,
		},
		{
			"a sysctl has a name",
			all("sysctls: [{name: '', value: x}]"),
			[]string{"spec.securityContext.sysctls[0].name: Required"},
		},
		{
			"a sysctl's name has a grammar",
			all("sysctls: [{name: Net.X, value: x}, {name: a..b, value: x}, {name: a-, value: x}]"),
			[]string{
				"spec.securityContext.sysctls[0].name: parts",
				"spec.securityContext.sysctls[1].name: parts",
				"spec.securityContext.sysctls[2].name: parts",
			},
		},
		{
			"a sysctl's name has 253 characters",
			all("sysctls: [{name: " + strings.Repeat("a", 254) + ", value: x}]"),
			[]string{"spec.securityContext.sysctls[0].name: 253"},
		},
		{
			"a sysctl is set once",
			all("sysctls: [{name: net.a.b, value: x}, {name: net/a/b, value: y}]"),
			[]string{"spec.securityContext.sysctls[1].name: Duplicate"},
		},
		{
			"the host's network is not the pod's to set",
			"{hostNetwork: true, " + all("sysctls: [{name: net.a, value: x}, {name: kernel.sem, value: x}]") + "}",
			[]string{"spec.securityContext.sysctls[0].name: hostNetwork"},
		},
		{
			"the host's IPC is not the pod's to set",
			"{hostIPC: true, " + all(
				"sysctls: [{name: kernel.shmmax, value: x}, {name: fs.mqueue.msg_max, value: x}, {name: "+
					"net.a, value: x}]",
			) + "}",
			[]string{
				"spec.securityContext.sysctls[0].name: hostIPC",
				"spec.securityContext.sysctls[1].name: hostIPC",
			},
		},
	})
}

func TestValidateScheduling(t *testing.T) {
	const required = "spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms"
	term := func(s string) string {
		return "affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [{" + s +
			"}]}}}"
	}
	validateCases(t, []validationCase{
		{"a node selector is labels", "nodeSelector: {'a b': c}", []string{"spec.nodeSelector: a b"}},
		{
			"no key tolerates by Exists",
			"tolerations: [{operator: Equal}]",
			[]string{"spec.tolerations[0].operator: Exists"},
		},
		{
			"Exists has no value",
			"tolerations: [{key: a, operator: Exists, value: b}]",
			[]string{"spec.tolerations[0].value: must be empty"},
		},
		{
			"seconds are for NoExecute",
			"tolerations: [{key: a, operator: Exists, effect: NoSchedule, tolerationSeconds: 1}]",
			[]string{"spec.tolerations[0].effect: NoExecute"},
		},
		{
			"a toleration's words are known",
			"tolerations: [{key: a, operator: Near, effect: Never}]",
			[]string{"spec.tolerations[0].operator: Unsupported", "spec.tolerations[0].effect: Unsupported"},
		},
		{
			"a bound is a number",
			"tolerations: [{key: a, operator: Gt, value: b}]",
			[]string{"spec.tolerations[0].value: integer"},
		},
		{
			"a node affinity has a term",
			"affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: []}}}",
			[]string{required + ": at least one"},
		},
		{
			"In has values",
			term("matchExpressions: [{key: a, operator: In}]"),
			[]string{required + "[0].matchExpressions[0].values: Required"},
		},
		{
			"Exists has no values",
			term("matchExpressions: [{key: a, operator: Exists, values: [b]}]"),
			[]string{required + "[0].matchExpressions[0].values: may not be specified"},
		},
		{"Gt has one number", term("matchExpressions: [{key: a, operator: Gt, values: [b]}, {key: a, operator: Lt}]"),
			[]string{
				required + "[0].matchExpressions[0].values[0]: integer",
				required + "[0].matchExpressions[1].values: single value",
			}},
		{
			"an operator is known",
			term("matchExpressions: [{key: a, operator: Like}]"),
			[]string{required + "[0].matchExpressions[0].operator: not a valid"},
		},
		{
			"a field is the name",
			term(
				"matchFields: [{key: metadata.uid, operator: In, values: [a]}, {key: metadata.name, operator: Exists}]",
			),
			[]string{
				required + "[0].matchFields[0].key: not a valid",
				required + "[0].matchFields[1].operator: not a valid",
			},
		},
		{
			"a preference weighs 1 to 100",
			"affinity: {nodeAffinity: {preferredDuringSchedulingIgnoredDuringExecution: [{weight: 0, " +
				"preference: {}}]}}",
			[]string{
				"spec.affinity.nodeAffinity.preferredDuringSchedulingIgnoredDuringExecution[0].weight: " +
					"between 1 and 100",
			},
		},
		{
			"a pod term has a topology",
			"affinity: {podAntiAffinity: {requiredDuringSchedulingIgnoredDuringExecution: [{namespaces: [A], " +
				"matchLabelKeys: [a]}]}}",
			[]string{
				"spec.affinity.podAntiAffinity.requiredDuringSchedulingIgnoredDuringExecution[0].topologyKey: can " +
					"not be empty",
				"spec.affinity.podAntiAffinity.requiredDuringSchedulingIgnoredDuringExecution[0].namespaces[0]: " +
					"RFC 1123",
				"spec.affinity.podAntiAffinity.requiredDuringSchedulingIgnoredDuringExecution[0].matchLabelKeys: " +
					"labelSelector",
			},
		},
		{
			"a spread constraint is whole",
			"topologySpreadConstraints: [{maxSkew: 0, topologyKey: '', whenUnsatisfiable: X, minDomains: 0, " +
				"nodeTaintsPolicy: Y}]",
			[]string{
				"spec.topologySpreadConstraints[0].maxSkew: greater than 0",
				"spec.topologySpreadConstraints[0].topologyKey: can not be empty",
				"spec.topologySpreadConstraints[0].whenUnsatisfiable: Unsupported",
				"spec.topologySpreadConstraints[0].minDomains: greater than 0",
				"spec.topologySpreadConstraints[0].minDomains: DoNotSchedule",
				"spec.topologySpreadConstraints[0].nodeTaintsPolicy: Unsupported",
			},
		},
		{
			"a spread constraint is made once",
			"topologySpreadConstraints: [{maxSkew: 1, topologyKey: a, whenUnsatisfiable: DoNotSchedule}, {maxSkew: " +
				"2, topologyKey: a, whenUnsatisfiable: DoNotSchedule}]",
			[]string{"spec.topologySpreadConstraints[1]: Duplicate"},
		},
		{
			"a gated pod has no node",
			"{nodeName: n, schedulingGates: [{name: a}, {name: a}]}",
			[]string{"spec.schedulingGates[1]: Duplicate", "spec.nodeName: schedulingGates"},
		},
	})
}

func TestValidateConfigMap(t *testing.T) {
	cm := &corev1.ConfigMap{
		Data:       map[string]string{"a/b": "x", "both": "x"},
		BinaryData: map[string][]byte{"both": nil, "..": nil},
	}
	cm.Name, cm.Namespace = "c", "default"
	expectErrors(t, ValidateConfigMap(cm), []string{
		"data[a/b]: alphanumeric", "data[both]: present in binaryData", "binaryData[..]: '..'",
	})
	cm.Data, cm.BinaryData = map[string]string{"a": strings.Repeat("x", 1<<20)}, map[string][]byte{"b": {1}}
	expectErrors(t, ValidateConfigMap(cm), []string{"data: 1048576"})
}

func TestValidateSecret(t *testing.T) {
	for _, row := range []struct {
		sentence string
		secret   corev1.Secret
		want     []string
	}{
		{"an opaque secret holds anything", corev1.Secret{Data: map[string][]byte{"a": []byte("x")}}, nil},
		{"a key is a file's name", corev1.Secret{StringData: map[string]string{"a b": "x"}},
			[]string{"data[a b]: alphanumeric"}},
		{"credentials of a registry are JSON", corev1.Secret{Type: corev1.SecretTypeDockerConfigJson,
			StringData: map[string]string{corev1.DockerConfigJsonKey: "hush"}},
			[]string{"data[.dockerconfigjson]: must be JSON"}},
		{"credentials of a registry are there", corev1.Secret{Type: corev1.SecretTypeDockercfg},
			[]string{"data[.dockercfg]: Required"}},
		{"basic auth has a user or a password", corev1.Secret{Type: corev1.SecretTypeBasicAuth},
			[]string{"data[username]: Required", "data[password]: Required"}},
		{"a password alone will do", corev1.Secret{Type: corev1.SecretTypeBasicAuth,
			StringData: map[string]string{"password": "hush"}}, nil},
		{"SSH has a key", corev1.Secret{Type: corev1.SecretTypeSSHAuth}, []string{"data[ssh-privatekey]: Required"}},
		{"TLS has a certificate and a key", corev1.Secret{Type: corev1.SecretTypeTLS},
			[]string{"data[tls.crt]: Required", "data[tls.key]: Required"}},
		{"a token names its account", corev1.Secret{Type: corev1.SecretTypeServiceAccountToken},
			[]string{"metadata.annotations[kubernetes.io/service-account.name]: Required"}},
	} {
		t.Run(row.sentence, func(t *testing.T) {
			s := row.secret
			s.Name, s.Namespace = "s", "default"
			SetSecretDefaults(&s)
			errs := ValidateSecret(&s)
			expectErrors(t, errs, row.want)
			if strings.Contains(fmt.Sprint(errs), "hush") {
				t.Errorf("the error contains the secret: %v", errs)
			}
		})
	}
}
