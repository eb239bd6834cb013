package pair

import (
	"fmt"
	"strings"
)

// staticPod is a pod of the manifest directory.
const staticPod = `apiVersion: v1
kind: Pod
metadata: {name: static, namespace: default}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - {name: c, image: "docker.io/library/busybox:1.36", command: [sleep, "1000000"]}
`

// canaryPod shows that an agent starts pods.
const canaryPod = `apiVersion: v1
kind: Pod
metadata: {name: NAME, namespace: default}
spec:
  nodeName: NODE
  terminationGracePeriodSeconds: 1
  containers:
  - {name: c, image: "docker.io/library/busybox:1.36", command: [sleep, "1000000"]}
`

// plainPod is one of the pods that make the node fuller. Every second one has requests.
const plainPod = `---
apiVersion: v1
kind: Pod
metadata: {name: plain-%02d, namespace: default}
spec:
  nodeName: NODE
  terminationGracePeriodSeconds: 1
  containers:
  - {name: c, image: IMAGE, command: [sleep, "1000000"], resources: {%s}}
`

// handoverPodCount is the number of pods of handoverPods with the static pod.
const handoverPodCount = 30

// notReady are the pods of handoverPods that do not become or stay ready.
var notReady = map[string]bool{"crashing": true, "pulling": true, "terminating": true}

// handoverPods returns pods of many kinds, assigned to a node.
func handoverPods(node string) string {
	var plain strings.Builder
	for i := range handoverPodCount - 10 {
		fmt.Fprintf(&plain, plainPod, i, []string{"", "requests: {cpu: 1m, memory: 1Mi}"}[i%2])
	}
	return strings.NewReplacer("NODE", node, "IMAGE", "docker.io/library/busybox:1.36").Replace(`
apiVersion: v1
kind: ConfigMap
metadata: {name: settings, namespace: default}
data: {key: value}
---
apiVersion: v1
kind: Secret
metadata: {name: password, namespace: default}
stringData: {key: secret}
---
apiVersion: v1
kind: Pod
metadata: {name: volumes, namespace: default, labels: {app: volumes}}
spec:
  nodeName: NODE
  terminationGracePeriodSeconds: 1
  containers:
  - name: c
    image: IMAGE
    command: [sh, -c, "echo kept > /data/file; echo started; exec sleep 1000000"]
    resources: {limits: {memory: 64Mi, cpu: 100m}, requests: {memory: 32Mi, cpu: 50m}}
    volumeMounts:
    - {name: data, mountPath: /data}
    - {name: memory, mountPath: /memory}
    - {name: settings, mountPath: /settings}
    - {name: password, mountPath: /password}
    - {name: labels, mountPath: /labels}
    - {name: all, mountPath: /all}
    - {name: data, mountPath: /part, subPath: part}
    - {name: host, mountPath: /host}
  volumes:
  - {name: data, emptyDir: {}}
  - {name: memory, emptyDir: {medium: Memory, sizeLimit: 1Mi}}
  - {name: settings, configMap: {name: settings}}
  - {name: password, secret: {secretName: password}}
  - {name: labels, downwardAPI: {items: [{path: labels, fieldRef: {fieldPath: metadata.labels}}]}}
  - name: all
    projected:
      sources:
      - configMap: {name: settings}
      - secret: {name: password, items: [{key: key, path: s}]}
  - {name: host, hostPath: {path: /tmp}}
---
apiVersion: v1
kind: Pod
metadata: {name: sidecars, namespace: default}
spec:
  nodeName: NODE
  terminationGracePeriodSeconds: 1
  initContainers:
  - {name: init, image: IMAGE, command: ["true"]}
  - name: sidecar
    image: IMAGE
    command: [sleep, "1000000"]
    restartPolicy: Always
    startupProbe: {exec: {command: ["true"]}}
  containers:
  - {name: c, image: IMAGE, command: [sleep, "1000000"]}
---
apiVersion: v1
kind: Pod
metadata: {name: probes, namespace: default}
spec:
  nodeName: NODE
  terminationGracePeriodSeconds: 1
  containers:
  - name: c
    image: IMAGE
    command: [sleep, "1000000"]
    readinessProbe: {exec: {command: ["true"]}, initialDelaySeconds: 2, periodSeconds: 1}
    livenessProbe: {exec: {command: ["true"]}, periodSeconds: 1}
    startupProbe: {exec: {command: ["true"]}, periodSeconds: 1}
    lifecycle: {postStart: {exec: {command: ["true"]}}, preStop: {exec: {command: ["true"]}}}
---
apiVersion: v1
kind: Pod
metadata: {name: guaranteed, namespace: default}
spec:
  nodeName: NODE
  terminationGracePeriodSeconds: 1
  containers:
  - name: c
    image: IMAGE
    command: [sleep, "1000000"]
    ports: [{containerPort: 80, hostPort: 18080}]
    resources: {limits: {memory: 32Mi, cpu: 50m}}
---
apiVersion: v1
kind: Pod
metadata: {name: hostnetwork, namespace: default}
spec:
  nodeName: NODE
  hostNetwork: true
  terminationGracePeriodSeconds: 1
  containers:
  - {name: c, image: IMAGE, command: [sleep, "1000000"]}
---
apiVersion: v1
kind: Pod
metadata: {name: crashing, namespace: default}
spec:
  nodeName: NODE
  terminationGracePeriodSeconds: 1
  containers:
  - {name: c, image: IMAGE, command: ["false"]}
---
apiVersion: v1
kind: Pod
metadata: {name: pulling, namespace: default}
spec:
  nodeName: NODE
  terminationGracePeriodSeconds: 1
  containers:
  - {name: c, image: "registry.invalid/none:1"}
---
apiVersion: v1
kind: Pod
metadata: {name: terminating, namespace: default}
spec:
  nodeName: NODE
  terminationGracePeriodSeconds: 600
  containers:
  - {name: c, image: IMAGE, command: [sh, -c, "trap '' TERM; sleep 1000000"]}
---
apiVersion: v1
kind: Pod
metadata: {name: counter, namespace: default}
spec:
  nodeName: NODE
  terminationGracePeriodSeconds: 1
  containers:
  - {name: c, image: IMAGE, command: [sh, -c, "i=0; while true; do echo $i; i=$((i+1)); sleep 1; done"]}
` + plain.String())
}
