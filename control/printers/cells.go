package printers

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/duration"
)

const (
	none    = "<none>"
	unset   = "<unset>"
	unknown = "<unknown>"
	// maxListed limits the addresses or ports in one cell.
	maxListed = 3
)

// age formats the time since t.
func age(t metav1.Time, now time.Time) string {
	if t.IsZero() {
		return unknown
	}
	return duration.HumanDuration(now.Sub(t.Time))
}

func orNone(s string) string {
	if s == "" {
		return none
	}
	return s
}

// valueOr formats the value of a pointer, or returns a placeholder if it is nil.
func valueOr[T any](p *T, placeholder string) any {
	if p == nil {
		return placeholder
	}
	return fmt.Sprint(*p)
}

func int32OrZero(p *int32) int64 {
	if p == nil {
		return 0
	}
	return int64(*p)
}

// formatBool formats an optional boolean.
func formatBool(p *bool) string {
	switch {
	case p == nil:
		return unset
	case *p:
		return "True"
	}
	return "False"
}

// joinLimited joins at most maxListed items.
func joinLimited(list []string, placeholder string) string {
	if len(list) == 0 {
		return placeholder
	}
	if len(list) <= maxListed {
		return strings.Join(list, ",")
	}
	return fmt.Sprintf("%s + %d more...", strings.Join(list[:maxListed], ","), len(list)-maxListed)
}

// formatLabels formats labels as a selector.
func formatLabels(m map[string]string) string {
	out := make([]string, 0, len(m))
	for _, k := range slices.Sorted(maps.Keys(m)) {
		out = append(out, k+"="+m[k])
	}
	return orNone(strings.Join(out, ","))
}

// formatSelector formats a selector for kubectl's flag -l.
func formatSelector(s *metav1.LabelSelector) string {
	parsed, err := metav1.LabelSelectorAsSelector(s)
	if err != nil {
		return "<invalid>"
	}
	return selectorOrNone(parsed)
}

func selectorOrNone(s labels.Selector) string { return orNone(s.String()) }

// containers returns the names and images of a template's containers.
func containers(spec *corev1.PodSpec) (names, images string) {
	n, i := make([]string, 0, len(spec.Containers)), make([]string, 0, len(spec.Containers))
	for k := range spec.Containers {
		n, i = append(n, spec.Containers[k].Name), append(i, spec.Containers[k].Image)
	}
	return strings.Join(n, ","), strings.Join(i, ",")
}
