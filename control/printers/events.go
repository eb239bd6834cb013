package printers

import (
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

var eventHeads = []metav1.TableColumnDefinition{
	text("Last Seen", "When it happened last."),
	text("Type", "Normal or Warning."),
	text("Reason", "What happened, in a word."),
	text("Object", "What it happened to."),
	wide(text("Subobject", "The part of the object.")),
	wide(text("Source", "Who tells.")),
	text("Message", "What happened."),
	wide(text("First Seen", "When it happened first.")),
	wide(metav1.TableColumnDefinition{Name: "Count", Type: "integer", Description: "How often it happened."}),
	wide(nameHead),
}

var eventColumns = of(eventRow, eventHeads...)

func eventRow(e *corev1.Event, now time.Time) []any {
	first := since(e.FirstTimestamp, now)
	if e.FirstTimestamp.IsZero() {
		first = since(metav1.Time{Time: e.EventTime.Time}, now)
	}
	last := since(e.LastTimestamp, now)
	if e.LastTimestamp.IsZero() {
		last = first
	}
	count := e.Count
	if e.Series != nil {
		last, count = since(metav1.Time{Time: e.Series.LastObservedTime.Time}, now), e.Series.Count
	} else if count == 0 {
		count = 1 // an event that was told once has no count
	}
	on := strings.ToLower(e.InvolvedObject.Kind)
	if e.InvolvedObject.Name != "" {
		on += "/" + e.InvolvedObject.Name
	}
	return []any{last, e.Type, e.Reason, on, e.InvolvedObject.FieldPath, from(e), strings.TrimSpace(e.Message), first, int64(count), e.Name}
}

// from is who tells: a component and the host that it is on.
func from(e *corev1.Event) string {
	who, where := e.Source.Component, e.Source.Host
	if who == "" {
		who = e.ReportingController
	}
	if where == "" {
		where = e.ReportingInstance
	}
	if where == "" {
		return who
	}
	return who + ", " + where
}
