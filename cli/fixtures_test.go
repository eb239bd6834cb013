package cli

import (
	"context"
	"fmt"
	"io"
	"slices"
	"time"

	"berth/nodeapi"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
)

func before(d time.Duration) metav1.Time { return metav1.NewTime(now.Add(-d)) }

func running(since time.Duration) corev1.ContainerState {
	return corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: before(since)}}
}

func exited(code int32, reason string, ago time.Duration) corev1.ContainerState {
	return corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: code, Reason: reason,
		StartedAt: before(ago + time.Minute), FinishedAt: before(ago)}}
}

func waiting(reason, message string) corev1.ContainerState {
	return corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason, Message: message}}
}

// pods are four pods of two namespaces in different states.
func pods() []corev1.Pod {
	return []corev1.Pod{webPod(), crashPod(), donePod(), dnsPod()}
}

func object(namespace, name string, age time.Duration) metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Namespace:         namespace,
		Name:              name,
		UID:               types.UID("uid-" + name),
		CreationTimestamp: before(age),
	}
}

func webPod() corev1.Pod {
	p := corev1.Pod{ObjectMeta: object("default", "web", 90*time.Minute)}
	p.Labels = map[string]string{"app": "web", "tier": "front"}
	p.Annotations = map[string]string{"note": "hello"}
	p.Spec = corev1.PodSpec{
		NodeName: "node-1",
		InitContainers: []corev1.Container{
			{Name: "setup", Image: "docker.io/library/busybox:1", Command: []string{"sh", "-c", "true"}},
			{
				Name:          "proxy",
				Image:         "docker.io/library/proxy:1",
				RestartPolicy: ptr.To(corev1.ContainerRestartPolicyAlways),
			},
		},
		Containers: []corev1.Container{{
			Name: "app", Image: "docker.io/library/nginx:1.14.2", Args: []string{"-g", "daemon off;"},
			Ports: []corev1.ContainerPort{
				{ContainerPort: 80, Name: "http", HostPort: 8080},
				{ContainerPort: 53, Protocol: corev1.ProtocolUDP},
			},
			Env: []corev1.EnvVar{{Name: "MODE", Value: "fast"},
				{
					Name: "TOKEN",
					ValueFrom: &corev1.EnvVarSource{
						SecretKeyRef: &corev1.SecretKeySelector{
							LocalObjectReference: corev1.LocalObjectReference{Name: "keys"},
							Key:                  "token",
						},
					},
				},
				{
					Name:      "IP",
					ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: "status.podIP"}},
				}},
			EnvFrom: []corev1.EnvFromSource{
				{
					Prefix: "X_",
					ConfigMapRef: &corev1.ConfigMapEnvSource{
						LocalObjectReference: corev1.LocalObjectReference{Name: "conf"},
					},
				},
			},
			Resources: corev1.ResourceRequirements{
				Limits:   corev1.ResourceList{"memory": resource.MustParse("200Mi"), "cpu": resource.MustParse("500m")},
				Requests: corev1.ResourceList{"memory": resource.MustParse("100Mi")}},
			LivenessProbe: &corev1.Probe{
				ProbeHandler: corev1.ProbeHandler{
					HTTPGet: &corev1.HTTPGetAction{Path: "/ok", Port: intstr.FromString("http")},
				},
				TimeoutSeconds:   1,
				PeriodSeconds:    10,
				SuccessThreshold: 1,
				FailureThreshold: 3,
			},
			ReadinessProbe: &corev1.Probe{
				ProbeHandler: corev1.ProbeHandler{
					Exec: &corev1.ExecAction{Command: []string{"test", "-e", "/ready"}},
				},
				TimeoutSeconds: 1,
			},
			VolumeMounts: []corev1.VolumeMount{
				{Name: "data", MountPath: "/data"},
				{Name: "conf", MountPath: "/conf", ReadOnly: true, SubPath: "a"},
			},
		}, {Name: "log", Image: "docker.io/library/busybox:1",
			Command: []string{"sh", "-c", "while sleep 1\ndo date\ndone\n"},
			Env: []corev1.EnvVar{
				{
					Name: "CPU",
					ValueFrom: &corev1.EnvVarSource{
						ResourceFieldRef: &corev1.ResourceFieldSelector{Resource: "limits.cpu"},
					},
				},
			}}},
		Volumes: []corev1.Volume{
			{
				Name: "data",
				VolumeSource: corev1.VolumeSource{
					EmptyDir: &corev1.EmptyDirVolumeSource{
						Medium:    corev1.StorageMediumMemory,
						SizeLimit: new(resource.MustParse("1Gi")),
					},
				},
			},
			{
				Name: "conf",
				VolumeSource: corev1.VolumeSource{
					ConfigMap: &corev1.ConfigMapVolumeSource{
						LocalObjectReference: corev1.LocalObjectReference{Name: "conf"},
					},
				},
			},
			{Name: "host", VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/srv"}}},
		},
		Tolerations:    []corev1.Toleration{{Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute}},
		ReadinessGates: []corev1.PodReadinessGate{{ConditionType: "example.com/gate"}},
	}
	p.Status = corev1.PodStatus{
		Phase: corev1.PodRunning, HostIP: "10.0.0.1", PodIP: "10.88.0.2", StartTime: new(before(89 * time.Minute)),
		QOSClass: corev1.PodQOSBurstable,
		PodIPs:   []corev1.PodIP{{IP: "10.88.0.2"}, {IP: "fd00::2"}},
		Conditions: []corev1.PodCondition{{Type: corev1.PodInitialized, Status: corev1.ConditionTrue},
			{
				Type:    corev1.PodReady,
				Status:  corev1.ConditionFalse,
				Reason:  "ContainersNotReady",
				Message: "containers with unready status: [log]",
			}},
		InitContainerStatuses: []corev1.ContainerStatus{
			{Name: "setup", State: exited(0, "Completed", 88*time.Minute)},
			{Name: "proxy", Ready: true, Started: new(true), State: running(88 * time.Minute)}},
		ContainerStatuses: []corev1.ContainerStatus{
			{
				Name:                 "app",
				Ready:                true,
				Started:              new(true),
				RestartCount:         3,
				ContainerID:          "containerd://abc",
				ImageID:              "docker.io/library/nginx@sha256:1",
				State:                running(20 * time.Second),
				LastTerminationState: exited(137, "OOMKilled", 25*time.Second),
			},
			{Name: "log", State: running(10 * time.Second)}},
	}
	return p
}

func crashPod() corev1.Pod {
	p := corev1.Pod{ObjectMeta: object("default", "crash", 10*time.Minute)}
	p.Spec = corev1.PodSpec{
		NodeName:   "node-1",
		Containers: []corev1.Container{{Name: "app", Image: "docker.io/library/busybox:1"}},
	}
	p.Status = corev1.PodStatus{
		Phase: corev1.PodRunning,
		PodIP: "10.88.0.3",
		ContainerStatuses: []corev1.ContainerStatus{{Name: "app", RestartCount: 5,
			State: waiting(
				"CrashLoopBackOff",
				"back-off 2m40s restarting failed container",
			), LastTerminationState: exited(1, "Error", 65*time.Second)}},
	}
	return p
}

func donePod() corev1.Pod {
	p := corev1.Pod{ObjectMeta: object("default", "done", 3*time.Hour)}
	p.Spec.Containers = []corev1.Container{{Name: "app", Image: "docker.io/library/busybox:1"}}
	p.Status = corev1.PodStatus{
		Phase:             corev1.PodSucceeded,
		ContainerStatuses: []corev1.ContainerStatus{{Name: "app", State: exited(0, "Completed", 170*time.Minute)}},
	}
	return p
}

func dnsPod() corev1.Pod {
	p := corev1.Pod{ObjectMeta: object("kube-system", "dns", 12*time.Second)}
	p.Spec = corev1.PodSpec{InitContainers: []corev1.Container{{Name: "wait", Image: "docker.io/library/busybox:1"}},
		Containers: []corev1.Container{
			{Name: "dns", Image: "docker.io/library/dns:1"},
		}, Priority: new(int32(2000000000))}
	p.Status = corev1.PodStatus{
		Phase:                 corev1.PodPending,
		InitContainerStatuses: []corev1.ContainerStatus{{Name: "wait", State: running(5 * time.Second)}},
		ContainerStatuses:     []corev1.ContainerStatus{{Name: "dns", State: waiting("PodInitializing", "")}},
	}
	return p
}

// watchSteps is a watch of all pods in which one container of web becomes ready and the pod is then
// deleted.
func watchSteps(all []corev1.Pod, send func(nodeapi.PodEvent) error) error {
	for i := range all {
		if err := send(nodeapi.PodEvent{Type: nodeapi.Added, Pod: &all[i]}); err != nil {
			return err
		}
	}
	ready := *all[0].DeepCopy()
	ready.Status.ContainerStatuses[1].Ready = true
	ending := *ready.DeepCopy()
	ending.DeletionTimestamp = new(before(0))
	for _, e := range []nodeapi.PodEvent{{Type: nodeapi.Synced}, {Type: nodeapi.Modified, Pod: &ready},
		{Type: nodeapi.Modified, Pod: &all[1]}, {Type: nodeapi.Modified, Pod: &ending},
		{Type: nodeapi.Deleted, Pod: &ending}} {
		if err := send(e); err != nil {
			return err
		}
	}
	return nil
}

func node() nodeapi.NodeSummary {
	return nodeapi.NodeSummary{Name: "node-1",
		InvalidManifests: []nodeapi.InvalidManifest{
			{
				Path:           "/etc/berth/manifests/bad.yaml",
				Line:           12,
				Field:          "spec.containers[0].image",
				Message:        "Required value",
				Since:          now.Add(-3 * time.Minute),
				LastValidInUse: true,
			},
			{Path: "/etc/berth/manifests/torn.json", Message: "unexpected end of JSON input"}},
		Warnings: []nodeapi.Warning{
			{Object: "pod/default/web", Field: "spec.schedulerName", Message: "has no meaning here"},
		}}
}

func eventsOf(namespace, pod string) []corev1.Event {
	all := []corev1.Event{
		{
			Type:           "Warning",
			Reason:         "BackOff",
			Message:        "Back-off restarting failed container app\n",
			Count:          7,
			FirstTimestamp: before(9 * time.Minute),
			LastTimestamp:  before(5 * time.Second),
			InvolvedObject: corev1.ObjectReference{
				Kind:      "Pod",
				Namespace: "default",
				Name:      "crash",
			},
			Source: corev1.EventSource{Component: "berth"},
		},
		{
			Type:           "Normal",
			Reason:         "Pulled",
			Message:        "Successfully pulled image",
			FirstTimestamp: before(89 * time.Minute),
			LastTimestamp:  before(89 * time.Minute),
			InvolvedObject: corev1.ObjectReference{
				Kind:      "Pod",
				Namespace: "default",
				Name:      "web",
			},
			Source: corev1.EventSource{Component: "berth"},
		},
		{
			Type:                "Normal",
			Reason:              "Started",
			Message:             "Started container wait",
			EventTime:           metav1.NewMicroTime(now.Add(-5 * time.Second)),
			ReportingController: "berth",
			InvolvedObject:      corev1.ObjectReference{Kind: "Pod", Namespace: "kube-system", Name: "dns"},
		},
	}
	for i := range all {
		all[i].Namespace = all[i].InvolvedObject.Namespace
		all[i].InvolvedObject.UID = types.UID("uid-" + all[i].InvolvedObject.Name)
	}
	return slices.DeleteFunc(all, func(e corev1.Event) bool {
		return (namespace != "" && e.Namespace != namespace) || (pod != "" && e.InvolvedObject.Name != pod)
	})
}

// fakeLogs writes its arguments in pieces that are not complete lines.
func fakeLogs(_ context.Context, q nodeapi.LogRequest, stdout, stderr io.Writer) error {
	if q.Container == "dns" {
		return apierrors.NewBadRequest(`container "dns" in pod "dns" is waiting to start: PodInitializing`)
	}
	var asked string
	if q.Previous || q.Timestamps || !q.SinceTime.IsZero() {
		asked = fmt.Sprintf(
			" previous=%t timestamps=%t since=%v sinceTime=%v",
			q.Previous,
			q.Timestamps,
			q.Since,
			q.SinceTime.UTC(),
		)
	}
	if q.Tail != nil && q.LimitBytes != nil {
		asked += fmt.Sprintf(" tail=%d limit=%d", *q.Tail, *q.LimitBytes)
	}
	for _, part := range []struct {
		to   io.Writer
		text string
	}{{stdout, "out of "}, {stderr, "err of " + q.Container + "\n"}, {stdout, q.Container + asked + "\nunfin"},
		{stdout, "ished " + q.Container}} {
		if _, err := io.WriteString(part.to, part.text); err != nil {
			return err
		}
	}
	return nil
}

func whyOf(namespace, name string) nodeapi.PodExplanation {
	return nodeapi.PodExplanation{Namespace: namespace, Name: name, UID: "uid-1", Phase: corev1.PodRunning,
		Summary: namespace + "/" + name + ": container app crashed 5 times and waits before its next start",
		WaitingFor: []nodeapi.WaitReason{
			{
				Reason:   "CrashLoopBackOff",
				Target:   "app",
				Message:  "exit code 1 after 1.2s",
				Since:    now.Add(-65 * time.Second),
				Until:    now.Add(95 * time.Second),
				Failures: 5,
				Details: []nodeapi.Detail{
					{Name: "delay", Value: "2m40s"},
					{Name: "delay after the next crash", Value: "5m0s"},
				},
			},
			{Reason: "NetworkNotReady", Message: "no CNI configuration", Since: now.Add(-26 * time.Hour)}},
		InProgress: []nodeapi.Operation{
			{Action: "PullImage", Target: "log", Detail: "12.3 MiB of 40.1 MiB", Since: now.Add(-3 * time.Second)},
		},
		Next: []nodeapi.Step{
			{Action: "StartContainer", Target: "app", At: now.Add(95 * time.Second)},
			{Action: "StartContainer", Target: "log", After: "PullImage log"},
		},
		Reasons: []nodeapi.Reason{
			{Code: "BackOff", Target: "app", Detail: "crashed 5 times in a row", Until: now.Add(95 * time.Second)},
		},
		Syncs: 42, LastSync: now.Add(-2 * time.Second), NextSync: now.Add(95 * time.Second)}
}

func timelineOf(namespace, name string) nodeapi.Timeline {
	at := func(ms int) time.Time { return now.Add(-2*time.Second + time.Duration(ms)*time.Millisecond) }
	return nodeapi.Timeline{Namespace: namespace, Name: name, UID: "uid-1", Now: now, Dropped: 3, Spans: []nodeapi.Span{
		{
			ID:    1,
			Kind:  nodeapi.SpanStage,
			Name:  "prepare",
			Start: at(0),
			End:   at(0).Add(310 * time.Microsecond),
			Cause: "new pod",
		},
		{ID: 2, Kind: nodeapi.SpanStage, Name: "build-run", Start: at(1), End: at(450)},
		{ID: 5, Parent: 4, Kind: nodeapi.SpanCall, Name: "RunPodSandbox", Start: at(2), End: at(86)},
		{
			ID:     4,
			Parent: 2,
			Kind:   nodeapi.SpanAction,
			Name:   "RunSandbox",
			Start:  at(1),
			End:    at(87),
			Cause:  "no sandbox",
		},
		{
			ID:     3,
			Parent: 2,
			Kind:   nodeapi.SpanAction,
			Name:   "PullImage",
			Target: "app",
			Start:  at(1),
			End:    at(450),
			Cause:  "not present",
			Error:  "connection refused",
		},
		{ID: 6, Kind: nodeapi.SpanAction, Name: "PullImage", Target: "app", Start: at(1450), Cause: "second try"},
	}}
}

func probesOf(namespace, name string) nodeapi.PodProbes {
	p := nodeapi.PodProbes{Namespace: namespace, Name: name, UID: "uid-1", Now: now}
	if name != "web" {
		return p
	}
	run := func(ago time.Duration, seconds float64, result string, counted bool, output string) nodeapi.ProbeRun {
		return nodeapi.ProbeRun{
			At:                    now.Add(-ago),
			Seconds:               seconds,
			Result:                result,
			CountsTowardThreshold: counted,
			Output:                output,
		}
	}
	p.Probes = []nodeapi.Probe{
		{
			Container:        "app",
			Kind:             "startup",
			Action:           "exec cat /ready",
			PeriodSeconds:    1,
			TimeoutSeconds:   1,
			SuccessThreshold: 1,
			FailureThreshold: 30,
			State:            nodeapi.ProbeDone,
			Successes:        1,
			Recent:           []nodeapi.ProbeRun{run(time.Minute, 0.0512, "success", true, "yes\n")},
		},
		{
			Container:        "app",
			Kind:             "readiness",
			Action:           "httpGet http://:8080/healthz",
			PeriodSeconds:    10,
			TimeoutSeconds:   1,
			SuccessThreshold: 1,
			FailureThreshold: 3,
			State:            nodeapi.ProbeFailing,
			Failures:         3,
			NextRun:          now.Add(7200 * time.Millisecond),
			Recent: []nodeapi.ProbeRun{
				run(2800*time.Millisecond, 0.00123, "failure", true, "HTTP probe failed with statuscode: 503"),
				run(
					12800*time.Millisecond,
					1.0004,
					"failure",
					false,
					"Get \"http://10.88.0.2:8080/healthz\": context deadline exceeded (Client.Timeout exceeded while "+
						"awaiting headers) and so on and on\x1b[31m",
				)},
		},
		{
			Container:        "app",
			Kind:             "liveness",
			Action:           "tcpSocket :8080",
			PeriodSeconds:    10,
			TimeoutSeconds:   1,
			SuccessThreshold: 1,
			FailureThreshold: 3,
			State:            nodeapi.ProbePassing,
			Successes:        1,
			Running:          true,
		},
		{
			Container:        "log",
			Kind:             "liveness",
			Action:           "grpc :9000",
			PeriodSeconds:    10,
			TimeoutSeconds:   1,
			SuccessThreshold: 1,
			FailureThreshold: 3,
			State:            nodeapi.ProbeWaiting,
			WaitingFor:       "the container to run",
		},
	}
	return p
}

func planOf(manifest string) nodeapi.PlanResult {
	if manifest != "pods" {
		return nodeapi.PlanResult{Warnings: []nodeapi.Warning{{Message: "the manifest is empty"}}}
	}
	return nodeapi.PlanResult{
		Warnings: []nodeapi.Warning{{Object: "pod/default/web", Message: "runs as root"}},
		Pods: []nodeapi.PodPlan{
			{Namespace: "default", Name: "web", Change: nodeapi.Create, Stages: []nodeapi.StagePlan{
				{
					Stage: "configure",
					Actions: []nodeapi.PlannedAction{
						{Action: "CreateDirs", Sync: 1},
						{Action: "MountVolume", Target: "data", Sync: 1},
					},
				},
				{Stage: "cleanup"},
				{
					Stage: "build-run",
					Actions: []nodeapi.PlannedAction{
						{Action: "PullImage", Target: "app", Detail: "nginx:1.14.2", Sync: 1},
						{Action: "StartContainer", Target: "app", Sync: 3},
					},
				}},
				Reasons: []nodeapi.Reason{{Code: "FailedMount", Target: "conf", Detail: `configmap "conf" not found`}}},
			{
				Namespace: "default",
				Name:      "big",
				Change:    nodeapi.Replace,
				Rejection: "OutOfmemory: wants 64Gi, free 2Gi",
			}},
	}
}

func checkReport() nodeapi.CheckReport {
	return nodeapi.CheckReport{Items: []nodeapi.CheckItem{
		{
			Name:      "runtime",
			OK:        true,
			Essential: true,
			Detail:    "containerd 1.6.20 on unix:///run/containerd/containerd.sock",
		},
		{
			Name:      "cni",
			Essential: true,
			Detail:    "no configuration in /etc/cni/net.d",
			Remedy:    "write one, or start berth with --cni-pod-cidr",
		},
		{Name: "clock", Detail: "not synchronized", Remedy: "run a time service"}}}
}

func agentVersion() nodeapi.Version {
	return nodeapi.Version{
		Version:    "v0.2.0",
		Commit:     "0123456789abcdef",
		Kubernetes: "v0.37.2",
		Go:         "go1.26.8",
		Platform:   "linux/amd64",
		Runtime:    "containerd 1.6.20",
		CRI:        "v1",
	}
}

// topOf gives every pod usage that grows with its index.
func topOf(all []corev1.Pod, chosen nodeapi.PodFilter, window time.Duration) nodeapi.Top {
	top := nodeapi.Top{At: now, Window: window, Pods: []nodeapi.PodTop{}}
	for i := range all {
		if !chosen(&all[i]) {
			continue
		}
		n := uint64(i + 1)
		use := nodeapi.Resources{
			CPUNanoCores: n * 1_500_000, CPUNanoSeconds: n, MemoryBytes: n << 22, WorkingSetBytes: n << 21,
			ReadBytesPerSecond: 10, WriteBytesPerSecond: float64(n * 3000), Processes: i + 2, IOUnavailable: i == 2,
		}
		if i%2 == 0 {
			use.PSI = &nodeapi.PSI{CPU: 12.5, IO: 1}
		}
		p := nodeapi.PodTop{Namespace: all[i].Namespace, Name: all[i].Name, UID: "u", Resources: use}
		for _, c := range all[i].Spec.Containers {
			p.Containers = append(p.Containers, nodeapi.ContainerTop{Name: c.Name, ID: "id", Resources: use})
			use.WorkingSetBytes *= 2
		}
		top.Pods = append(top.Pods, p)
	}
	return top
}

func evictionOf(signal string) nodeapi.EvictionPreview {
	if signal == "pid.available" {
		return nodeapi.EvictionPreview{Signals: []nodeapi.EvictionSignal{{
			Signal: signal, Message: "pid.available is 90, less than 100", UnderPressure: true, Resource: "pids",
			Order: []nodeapi.EvictionRank{
				{Namespace: "default", Name: "forks", Known: true, Used: 4000, UsedText: "4k"},
			},
		}}}
	}
	return nodeapi.EvictionPreview{
		Signals: []nodeapi.EvictionSignal{
			{
				Signal:      "memory.available",
				Message:     "memory.available is 1Gi, of at least 100Mi",
				Resource:    "memory",
				Requestable: true,
				Order: []nodeapi.EvictionRank{
					{Namespace: "default", Name: "crash", RequestedText: "0"},
					{
						Namespace:      "default",
						Name:           "web",
						Known:          true,
						Used:           200 << 20,
						UsedText:       "200Mi",
						Requested:      100 << 20,
						RequestedText:  "100Mi",
						ExceedsRequest: true,
						Priority:       -5,
					},
					{
						Namespace:     "shop",
						Name:          "database",
						Known:         true,
						Used:          1 << 30,
						UsedText:      "1Gi",
						Requested:     2 << 30,
						RequestedText: "2Gi",
						Priority:      1000,
					},
				},
			},
			{
				Signal:      "nodefs.available",
				Message:     "nodefs.available is not known",
				Resource:    "ephemeral-storage",
				Requestable: true,
			},
		},
		Exempt: []nodeapi.ExemptPod{
			{Namespace: "kube-system", Name: "dns\x1b[31m", Reason: "critical because of its priority 2000000000"},
		},
	}
}

func imagesOf() nodeapi.Images {
	return nodeapi.Images{
		Images: []nodeapi.Image{
			{
				ID: "sha256:0123456789abcdef",
				Names: []string{
					"docker.io/library/web:1",
					"docker.io/library/web:latest",
					"docker.io/library/web@sha256:ff",
				},
				Size:   1_234_567,
				Pinned: "/var/lib/berth/images/web.tar",
			},
			{ID: "sha256:fedcba9876543210", Names: []string{"reg.example:5000/db@sha256:aa"}, Size: 987, InUse: true},
			{ID: "sha256:aaaa", Size: 250_000_000_000, Pinned: "by the runtime"},
		},
		Archives: []nodeapi.Archive{
			{Path: "/var/lib/berth/images/web.tar", State: "imported", Images: []string{"docker.io/library/web:1"}},
			{Path: "/var/lib/berth/images/bad.tar", State: "broken", Message: "read tar: unexpected EOF"},
			{Path: "/var/lib/berth/images/new.tar", State: "importing"},
		},
	}
}
