package differential

import (
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
)

var (
	timePattern     = regexp.MustCompile(`\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z`)
	nodePattern     = regexp.MustCompile(`"node-\d"`)
	failedPattern   = regexp.MustCompile(`for pod ([a-z0-9-]+)/[a-z0-9-]+ failed`)
	rejectedPattern = regexp.MustCompile(`pods \\"[a-z0-9-]+\\" is forbidden`)

	uidPattern = regexp.MustCompile(`[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}`)
)

// touchAnnotation is on objects of one side only.
const touchAnnotation = "differential/touched"

// ownMetadata are the fields of metadata that differ between any two servers.
var ownMetadata = []string{"uid", "resourceVersion", "creationTimestamp", "managedFields", "namespace",
	"deletionTimestamp"}

// normalize returns a line for each object of a namespace, sorted. Times and UIDs are replaced, generated names lose
// their suffix, and of events only the kind of the object, the type and the reason are kept.
func normalize(objects map[string][]runtime.Object) ([]string, error) {
	var lines []string
	names := podNames(objects["Pod"])
	for _, kind := range slices.Sorted(maps.Keys(objects)) {
		for _, obj := range objects[kind] {
			line, err := normalizeObject(kind, obj, names)
			if err != nil {
				return nil, err
			}
			// Events are sent in batches and counted: only which reasons appear is compared.
			if line != "" && (kind != "Event" || !slices.Contains(lines, line)) {
				lines = append(lines, line)
			}
		}
	}
	slices.Sort(lines)
	return lines, nil
}

// podNames maps the names of pods with a generated name to the name without suffix.
func podNames(pods []runtime.Object) map[string]string {
	out := map[string]string{}
	for _, obj := range pods {
		if pod, is := obj.(*corev1.Pod); is && pod.GenerateName != "" && strings.HasPrefix(pod.Name, pod.GenerateName) {
			out[pod.Name] = pod.GenerateName + "*"
		}
	}
	return out
}

func normalizeObject(kind string, obj runtime.Object, names map[string]string) (string, error) {
	if event, is := obj.(*corev1.Event); is {
		if ignoredEvent(event) {
			return "", nil
		}
		return fmt.Sprintf("Event %s %s %s", event.InvolvedObject.Kind, event.Type, event.Reason), nil
	}
	fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(obj)
	if err != nil {
		return "", err
	}
	accessor, err := meta.Accessor(obj)
	if err != nil {
		return "", err
	}
	metadata, _ := fields["metadata"].(map[string]any)
	for _, name := range ownMetadata {
		delete(metadata, name)
	}
	if annotations, is := metadata["annotations"].(map[string]any); is {
		delete(annotations, touchAnnotation)
	}
	if short := names[accessor.GetName()]; short != "" {
		metadata["name"] = short
	}
	switch kind {
	case "Pod":
		normalizePod(fields)
	case "PersistentVolumeClaim":
		normalizeClaim(fields)
	case "CronJob":
		normalizeActive(fields)
	case "ReplicaSet": // the number of steps of a rolling update depends on which pods become ready together
		delete(metadata, "generation")
		if status, is := fields["status"].(map[string]any); is {
			delete(status, "observedGeneration")
		}
	}
	sortConditions(fields)
	text, err := json.Marshal(fields)
	if err != nil {
		return "", err
	}
	line := timePattern.ReplaceAllString(string(text), "TIME")
	// A DaemonSet's controller may choose any of the nodes for the next update.
	line = nodePattern.ReplaceAllString(line, `"NODE"`)
	line = uidPattern.ReplaceAllString(line, "UID")
	// The messages of a rejected and of a failed pod have its generated name.
	line = failedPattern.ReplaceAllString(line, "for pod $1/POD failed")
	line = rejectedPattern.ReplaceAllString(line, `pods \"POD\" is forbidden`)
	return kind + " " + line, nil
}

// ignoredEvent reports whether obj is an event that is not compared: of a scheduler, an agent or the binder of claims,
// that a CronJob has a Job it did not create, which its controller notices only while the Job runs, or of the update of
// a claim: berth creates a claim with its owner, upstream adds the owner in a second request.
func ignoredEvent(obj any) bool {
	event, is := obj.(*corev1.Event)
	if !is {
		return false
	}
	switch event.InvolvedObject.Kind {
	case "Pod", "PersistentVolumeClaim":
		return true
	}
	isUpdate := event.Reason == "SuccessfulUpdate" || event.Reason == "FailedUpdate"
	return event.Reason == "UnexpectedJob" || event.InvolvedObject.Kind == "StatefulSet" && isUpdate
}

// normalizeClaim removes what the controllers of storage write, which only one side has.
func normalizeClaim(fields map[string]any) {
	metadata, _ := fields["metadata"].(map[string]any)
	delete(metadata, "finalizers")
	delete(metadata, "annotations")
	delete(fields, "status")
}

// normalizeActive removes the versions of the running Jobs from the status of a CronJob.
func normalizeActive(fields map[string]any) {
	status, _ := fields["status"].(map[string]any)
	active, _ := status["active"].([]any)
	for _, entry := range active {
		if ref, is := entry.(map[string]any); is {
			delete(ref, "resourceVersion")
		}
	}
}

// sortConditions sorts the conditions of an object by type. Their order depends on which one changed last.
func sortConditions(fields map[string]any) {
	status, _ := fields["status"].(map[string]any)
	conditions, _ := status["conditions"].([]any)
	typeOf := func(condition any) string {
		c, _ := condition.(map[string]any)
		name, _ := c["type"].(string)
		return name
	}
	slices.SortStableFunc(conditions, func(a, b any) int { return strings.Compare(typeOf(a), typeOf(b)) })
}

// normalizePod removes what the scheduler and the agent decide, and all volumes but claims: that of the service account
// token has a random name.
func normalizePod(fields map[string]any) {
	spec, _ := fields["spec"].(map[string]any)
	delete(spec, "nodeName")
	volumes, _ := spec["volumes"].([]any)
	spec["volumes"] = slices.DeleteFunc(volumes, func(volume any) bool {
		v, _ := volume.(map[string]any)
		return v["persistentVolumeClaim"] == nil
	})
	containers, _ := spec["containers"].([]any)
	for _, c := range containers {
		if container, is := c.(map[string]any); is {
			delete(container, "volumeMounts")
		}
	}
	status, _ := fields["status"].(map[string]any)
	fields["status"] = map[string]any{"phase": status["phase"]}
}

// compare returns the lines that only one side has, with - for the first and + for the second side, or "".
func compare(a, b []string) string {
	counts := map[string]int{}
	for _, line := range a {
		counts[line]++
	}
	for _, line := range b {
		counts[line]--
	}
	var out strings.Builder
	for _, line := range slices.Sorted(maps.Keys(counts)) {
		switch n := counts[line]; {
		case n > 0:
			fmt.Fprintf(&out, "- %d x %s\n", n, line)
		case n < 0:
			fmt.Fprintf(&out, "+ %d x %s\n", -n, line)
		}
	}
	return out.String()
}
