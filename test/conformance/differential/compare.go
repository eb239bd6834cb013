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
	timePattern = regexp.MustCompile(`\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z`)
	nodePattern = regexp.MustCompile(`"node-\d"`)
	uidPattern  = regexp.MustCompile(`[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}`)
)

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
		if event.InvolvedObject.Kind == "Pod" { // events of the scheduler and the agent
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
	if short := names[accessor.GetName()]; short != "" {
		metadata["name"] = short
	}
	switch kind {
	case "Pod":
		normalizePod(fields)
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
	return kind + " " + line, nil
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

// normalizePod removes what the scheduler and the agent decide, and the volume of the service account token, whose
// name is random.
func normalizePod(fields map[string]any) {
	spec, _ := fields["spec"].(map[string]any)
	delete(spec, "nodeName")
	delete(spec, "volumes")
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
