package registry

import (
	"strconv"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/fields"
)

func yesNo(b bool) string { return strconv.FormatBool(b) }

func podFields(p *corev1.Pod) fields.Set {
	set := fields.Set{
		"spec.nodeName":            p.Spec.NodeName,
		"spec.restartPolicy":       string(p.Spec.RestartPolicy),
		"spec.schedulerName":       p.Spec.SchedulerName,
		"spec.serviceAccountName":  p.Spec.ServiceAccountName,
		"spec.hostNetwork":         yesNo(p.Spec.HostNetwork),
		"status.phase":             string(p.Status.Phase),
		"status.podIP":             p.Status.PodIP,
		"status.nominatedNodeName": p.Status.NominatedNodeName,
	}
	if len(p.Status.PodIPs) > 0 {
		set["status.podIP"] = p.Status.PodIPs[0].IP
	}
	return set
}

var (
	coreEventFields = []string{
		"involvedObject.kind",
		"involvedObject.namespace",
		"involvedObject.name",
		"involvedObject.uid",
		"involvedObject.apiVersion",
		"involvedObject.resourceVersion",
		"involvedObject.fieldPath",
		"reason",
		"reportingComponent",
		"source",
		"type",
	}
	groupEventFields = []string{"regarding.kind", "regarding.namespace", "regarding.name", "regarding.uid",
		"regarding.apiVersion", "regarding.resourceVersion", "regarding.fieldPath", "reason", "reportingController",
		"type"}
)

// eventFields returns the selectable fields of an event with the names of both groups.
func eventFields(e *corev1.Event) fields.Set {
	source := e.Source.Component
	if source == "" {
		source = e.ReportingController
	}
	set := fields.Set{
		"reason": e.Reason, "type": e.Type, "source": source,
		"reportingComponent": e.ReportingController, "reportingController": e.ReportingController,
	}
	for _, object := range []string{"involvedObject", "regarding"} {
		set[object+".kind"] = e.InvolvedObject.Kind
		set[object+".namespace"] = e.InvolvedObject.Namespace
		set[object+".name"] = e.InvolvedObject.Name
		set[object+".uid"] = string(e.InvolvedObject.UID)
		set[object+".apiVersion"] = e.InvolvedObject.APIVersion
		set[object+".resourceVersion"] = e.InvolvedObject.ResourceVersion
		set[object+".fieldPath"] = e.InvolvedObject.FieldPath
	}
	return set
}
