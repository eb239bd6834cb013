package printers

import (
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

var eventDefinitions = []metav1.TableColumnDefinition{
	stringColumn("Last Seen", "Time of the last occurrence."),
	stringColumn("Type", "Type of the event, Normal or Warning."),
	stringColumn("Reason", "Reason of the event."),
	stringColumn("Object", "Involved object."),
	wideColumn(stringColumn("Subobject", "Field of the involved object.")),
	wideColumn(stringColumn("Source", "Component that reported the event.")),
	stringColumn("Message", "Description of the event."),
	wideColumn(stringColumn("First Seen", "Time of the first occurrence.")),
	wideColumn(metav1.TableColumnDefinition{Name: "Count", Type: "integer", Description: "Number of occurrences."}),
	wideColumn(nameColumn),
}

var eventColumns = columnsOf(eventRow, eventDefinitions...)

func eventRow(e *corev1.Event, now time.Time) []any {
	first := age(e.FirstTimestamp, now)
	if e.FirstTimestamp.IsZero() {
		first = age(metav1.Time{Time: e.EventTime.Time}, now)
	}
	last := age(e.LastTimestamp, now)
	if e.LastTimestamp.IsZero() {
		last = first
	}
	count := e.Count
	if e.Series != nil {
		last, count = age(metav1.Time{Time: e.Series.LastObservedTime.Time}, now), e.Series.Count
	} else if count == 0 {
		count = 1 // a single event has no count
	}
	on := strings.ToLower(e.InvolvedObject.Kind)
	if e.InvolvedObject.Name != "" {
		on += "/" + e.InvolvedObject.Name
	}
	return []any{
		last,
		e.Type,
		e.Reason,
		on,
		e.InvolvedObject.FieldPath,
		eventSource(e),
		strings.TrimSpace(e.Message),
		first,
		int64(count),
		e.Name,
	}
}

// eventSource returns the reporting component and its host.
func eventSource(e *corev1.Event) string {
	component, host := e.Source.Component, e.Source.Host
	if component == "" {
		component = e.ReportingController
	}
	if host == "" {
		host = e.ReportingInstance
	}
	if host == "" {
		return component
	}
	return component + ", " + host
}
