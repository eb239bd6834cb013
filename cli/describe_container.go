package cli

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
)

func containerFields(
	specs []corev1.Container,
	statuses []corev1.ContainerStatus,
	next map[string]time.Time,
	now time.Time,
) []field {
	var fields []field
	for _, c := range specs {
		f := field{key: c.Name}
		var st corev1.ContainerStatus
		known := false
		if i := slices.IndexFunc(statuses, func(s corev1.ContainerStatus) bool { return s.Name == c.Name }); i >= 0 {
			st, known = statuses[i], true
		}
		f.under = append(f.under,
			field{key: "Container ID", value: orNone(st.ContainerID)},
			field{key: "Image", value: c.Image},
			field{key: "Image ID", value: orNone(st.ImageID)},
			field{key: portKey(c.Ports), value: portText(c.Ports)},
		)
		f.under = append(f.under, argFields("Command", c.Command)...)
		f.under = append(f.under, argFields("Args", c.Args)...)
		if known {
			state := stateField("State", st.State, now)
			if at := next[c.Name]; st.State.Waiting != nil && at.After(now) {
				state.under = append(state.under, field{key: "Next Retry", value: clockIn(now, at)})
			}
			f.under = append(f.under, state)
			if st.LastTerminationState.Terminated != nil {
				f.under = append(f.under, stateField("Last State", st.LastTerminationState, now))
			}
			f.under = append(f.under,
				field{key: "Ready", value: title(st.Ready)},
				field{key: "Restart Count", value: fmt.Sprint(st.RestartCount)})
		}
		f.under = append(f.under, resourceFields("Limits", c.Resources.Limits)...)
		f.under = append(f.under, resourceFields("Requests", c.Resources.Requests)...)
		f.under = append(f.under, probeFields(c)...)
		f.under = append(f.under, envFields(c)...)
		f.under = append(f.under, mountFields(c)...)
		fields = append(fields, f)
	}
	return fields
}

func portKey(ports []corev1.ContainerPort) string {
	if len(ports) > 1 {
		return "Ports"
	}
	return "Port"
}

func portText(ports []corev1.ContainerPort) string {
	var texts []string
	for _, p := range ports {
		protocol := p.Protocol
		if protocol == "" {
			protocol = corev1.ProtocolTCP
		}
		text := fmt.Sprintf("%d/%s", p.ContainerPort, protocol)
		if p.Name != "" {
			text += " (" + p.Name + ")"
		}
		if p.HostPort != 0 {
			text += fmt.Sprintf(" on host port %d", p.HostPort)
		}
		texts = append(texts, text)
	}
	return orNone(strings.Join(texts, ", "))
}

func argFields(key string, words []string) []field {
	if len(words) == 0 {
		return nil
	}
	f := field{key: key}
	for _, w := range words {
		for line := range strings.SplitSeq(strings.TrimSuffix(w, "\n"), "\n") { // scripts keep their line breaks
			f.under = append(f.under, field{value: line})
		}
	}
	return []field{f}
}

func stateField(key string, s corev1.ContainerState, now time.Time) field {
	switch {
	case s.Running != nil:
		return field{key: key, value: "Running", under: []field{
			{
				key:   "Started",
				value: moment(s.Running.StartedAt.Time) + " (" + ago(now, s.Running.StartedAt.Time) + " ago)",
			}}}
	case s.Terminated != nil:
		t := s.Terminated
		f := field{key: key, value: "Terminated"}
		if t.Reason != "" {
			f.under = append(f.under, field{key: "Reason", value: t.Reason})
		}
		if t.Message != "" {
			f.under = append(f.under, field{key: "Message", value: t.Message})
		}
		f.under = append(f.under, field{key: "Exit Code", value: fmt.Sprint(t.ExitCode)})
		if t.Signal > 0 {
			f.under = append(f.under, field{key: "Signal", value: fmt.Sprint(t.Signal)})
		}
		f.under = append(f.under,
			field{key: "Started", value: moment(t.StartedAt.Time)},
			field{key: "Finished", value: moment(t.FinishedAt.Time)})
		return f
	case s.Waiting != nil:
		f := field{key: key, value: "Waiting"}
		if s.Waiting.Reason != "" {
			f.under = append(f.under, field{key: "Reason", value: s.Waiting.Reason})
		}
		if s.Waiting.Message != "" {
			f.under = append(f.under, field{key: "Message", value: s.Waiting.Message})
		}
		return f
	default:
		return field{key: key, value: "Waiting"}
	}
}

func title(b bool) string {
	if b {
		return "True"
	}
	return "False"
}

func resourceFields(key string, l corev1.ResourceList) []field {
	if len(l) == 0 {
		return nil
	}
	f := field{key: key}
	for _, name := range slices.Sorted(maps.Keys(l)) {
		q := l[name]
		f.under = append(f.under, field{key: string(name), value: q.String()})
	}
	return []field{f}
}

func probeFields(c corev1.Container) []field {
	var fields []field
	for _, p := range []struct {
		key   string
		probe *corev1.Probe
	}{{"Liveness", c.LivenessProbe}, {"Readiness", c.ReadinessProbe}, {"Startup", c.StartupProbe}} {
		if p.probe != nil {
			fields = append(fields, field{key: p.key, value: probeText(p.probe)})
		}
	}
	return fields
}

func probeText(p *corev1.Probe) string {
	var how string
	switch {
	case p.Exec != nil:
		how = fmt.Sprintf("exec %v", p.Exec.Command)
	case p.HTTPGet != nil:
		scheme := strings.ToLower(string(p.HTTPGet.Scheme))
		if scheme == "" {
			scheme = "http"
		}
		how = fmt.Sprintf(
			"http-get %s://%s:%s/%s",
			scheme,
			p.HTTPGet.Host,
			p.HTTPGet.Port.String(),
			strings.TrimPrefix(p.HTTPGet.Path, "/"),
		)
	case p.TCPSocket != nil:
		how = fmt.Sprintf("tcp-socket %s:%s", p.TCPSocket.Host, p.TCPSocket.Port.String())
	case p.GRPC != nil:
		how = fmt.Sprintf("grpc :%d", p.GRPC.Port)
		if p.GRPC.Service != nil && *p.GRPC.Service != "" {
			how += " " + *p.GRPC.Service
		}
	default:
		how = "unknown"
	}
	return fmt.Sprintf("%s delay=%ds timeout=%ds period=%ds #success=%d #failure=%d", how,
		p.InitialDelaySeconds, p.TimeoutSeconds, p.PeriodSeconds, p.SuccessThreshold, p.FailureThreshold)
}

func envFields(c corev1.Container) []field {
	var fields []field
	if len(c.EnvFrom) > 0 {
		f := field{key: "Environment Variables from"}
		for _, e := range c.EnvFrom {
			f.under = append(f.under, field{key: envSource(e), value: envSourceMore(e)})
		}
		fields = append(fields, f)
	}
	if len(c.Env) == 0 {
		return append(fields, field{key: "Environment", value: none})
	}
	f := field{key: "Environment"}
	for _, e := range c.Env {
		value := e.Value
		if e.ValueFrom != nil {
			value = envValueFrom(e.ValueFrom)
		}
		f.under = append(f.under, field{key: e.Name, value: value})
	}
	return append(fields, f)
}

func envSource(e corev1.EnvFromSource) string {
	switch {
	case e.ConfigMapRef != nil:
		return e.ConfigMapRef.Name
	case e.SecretRef != nil:
		return e.SecretRef.Name
	default:
		return unknown
	}
}

func envSourceMore(e corev1.EnvFromSource) string {
	text, optional := "", false
	switch {
	case e.ConfigMapRef != nil:
		text, optional = "ConfigMap", isSet(e.ConfigMapRef.Optional)
	case e.SecretRef != nil:
		text, optional = "Secret", isSet(e.SecretRef.Optional)
	}
	if e.Prefix != "" {
		text += " with prefix '" + e.Prefix + "'"
	}
	return text + "  Optional: " + fmt.Sprint(optional)
}

func isSet(b *bool) bool { return b != nil && *b }

// envValueFrom describes the source of a value, never the value.
func envValueFrom(v *corev1.EnvVarSource) string {
	switch {
	case v.FieldRef != nil:
		return fmt.Sprintf("(%s)", v.FieldRef.FieldPath)
	case v.ResourceFieldRef != nil:
		if v.ResourceFieldRef.ContainerName == "" { // the container's own resources
			return fmt.Sprintf("(%s)", v.ResourceFieldRef.Resource)
		}
		return fmt.Sprintf("(%s of %s)", v.ResourceFieldRef.Resource, v.ResourceFieldRef.ContainerName)
	case v.SecretKeyRef != nil:
		return fmt.Sprintf("<set to the key '%s' in secret '%s'>  Optional: %t",
			v.SecretKeyRef.Key, v.SecretKeyRef.Name, isSet(v.SecretKeyRef.Optional))
	case v.ConfigMapKeyRef != nil:
		return fmt.Sprintf("<set to the key '%s' of config map '%s'>  Optional: %t",
			v.ConfigMapKeyRef.Key, v.ConfigMapKeyRef.Name, isSet(v.ConfigMapKeyRef.Optional))
	default:
		return unknown
	}
}

func mountFields(c corev1.Container) []field {
	if len(c.VolumeMounts) == 0 {
		return []field{{key: "Mounts", value: none}}
	}
	f := field{key: "Mounts"}
	for _, m := range c.VolumeMounts {
		mode := "rw"
		if m.ReadOnly {
			mode = "ro"
		}
		text := fmt.Sprintf("%s from %s (%s", m.MountPath, m.Name, mode)
		if m.SubPath != "" {
			text += fmt.Sprintf(",path=%q", m.SubPath)
		}
		if m.SubPathExpr != "" {
			text += fmt.Sprintf(",expr=%q", m.SubPathExpr)
		}
		f.under = append(f.under, field{value: text + ")"})
	}
	return []field{f}
}

func volumeFields(v corev1.VolumeSource) []field {
	switch {
	case v.EmptyDir != nil:
		limit := "<unset>"
		if v.EmptyDir.SizeLimit != nil {
			limit = v.EmptyDir.SizeLimit.String()
		}
		return []field{
			{key: "Type", value: "EmptyDir"},
			{key: "Medium", value: orNone(string(v.EmptyDir.Medium))},
			{key: "SizeLimit", value: limit},
		}
	case v.HostPath != nil:
		kind := ""
		if v.HostPath.Type != nil {
			kind = string(*v.HostPath.Type)
		}
		return []field{
			{key: "Type", value: "HostPath"},
			{key: "Path", value: v.HostPath.Path},
			{key: "HostPathType", value: orNone(kind)},
		}
	case v.ConfigMap != nil:
		return []field{
			{key: "Type", value: "ConfigMap"},
			{key: "Name", value: v.ConfigMap.Name},
			{key: "Optional", value: fmt.Sprint(isSet(v.ConfigMap.Optional))},
		}
	case v.Secret != nil:
		return []field{
			{key: "Type", value: "Secret"},
			{key: "SecretName", value: v.Secret.SecretName},
			{key: "Optional", value: fmt.Sprint(isSet(v.Secret.Optional))},
		}
	case v.DownwardAPI != nil:
		return []field{{key: "Type", value: "DownwardAPI"}, {key: "Items", under: downwardFields(v.DownwardAPI.Items)}}
	case v.Projected != nil:
		return append([]field{{key: "Type", value: "Projected"}}, projectedFields(v.Projected.Sources)...)
	case v.PersistentVolumeClaim != nil:
		return []field{
			{key: "Type", value: "PersistentVolumeClaim"},
			{key: "ClaimName", value: v.PersistentVolumeClaim.ClaimName},
			{key: "ReadOnly", value: fmt.Sprint(v.PersistentVolumeClaim.ReadOnly)},
		}
	case v.CSI != nil:
		return []field{{key: "Type", value: "CSI"}, {key: "Driver", value: v.CSI.Driver}}
	case v.Image != nil:
		return []field{{key: "Type", value: "Image"}, {key: "Reference", value: v.Image.Reference}}
	default:
		return []field{{key: "Type", value: unknown}}
	}
}

func downwardFields(items []corev1.DownwardAPIVolumeFile) []field {
	var fields []field
	for _, it := range items {
		switch {
		case it.FieldRef != nil:
			fields = append(fields, field{value: it.FieldRef.FieldPath + " -> " + it.Path})
		case it.ResourceFieldRef != nil:
			fields = append(fields, field{value: it.ResourceFieldRef.Resource + " -> " + it.Path})
		}
	}
	return fields
}

func projectedFields(sources []corev1.VolumeProjection) []field {
	var fields []field
	for _, s := range sources {
		switch {
		case s.ConfigMap != nil:
			fields = append(fields, field{key: "ConfigMapName", value: s.ConfigMap.Name})
		case s.Secret != nil:
			fields = append(fields, field{key: "SecretName", value: s.Secret.Name})
		case s.DownwardAPI != nil:
			fields = append(fields, field{key: "DownwardAPI", value: title(true)})
		case s.ServiceAccountToken != nil:
			fields = append(fields, field{key: "Token", value: s.ServiceAccountToken.Path})
		case s.ClusterTrustBundle != nil:
			fields = append(fields, field{key: "ClusterTrustBundle", value: s.ClusterTrustBundle.Path})
		case s.PodCertificate != nil:
			fields = append(fields, field{key: "PodCertificate", value: s.PodCertificate.SignerName})
		}
	}
	return fields
}
