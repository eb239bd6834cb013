package validation

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

const (
	maxEventNote = 1024 // maximum length of the message, in bytes
	maxEventWord = 128  // maximum length of each other string, in bytes
)

// event validates an event of either group. For core events it is the only validation: events that
// use the deprecated count have no eventTime.
func (k *validator) event(e *corev1.Event) {
	on := e.InvolvedObject.Namespace
	// Events about cluster-scoped objects are in the default namespace.
	agrees := on == "" && e.Namespace == metav1.NamespaceDefault
	if e.EventTime.IsZero() {
		agrees = agrees || on == e.Namespace
	} else {
		agrees = agrees || on != "" || e.Namespace == metav1.NamespaceSystem
	}
	if !agrees {
		k.Invalid(field.NewPath("involvedObject", "namespace"), on, "does not match event.namespace")
	}
	if e.EventTime.IsZero() {
		return
	}
	k.Name(field.NewPath("reportingController"), e.ReportingController, validation.IsQualifiedName)
	for _, f := range []struct {
		name, value string
		most        int
		required    bool
	}{
		{"reportingInstance", e.ReportingInstance, maxEventWord, true}, {"action", e.Action, maxEventWord, true},
		{"reason", e.Reason, maxEventWord, true}, {"message", e.Message, maxEventNote, false},
	} {
		at := field.NewPath(f.name)
		if f.required && f.value == "" {
			k.Required(at, "")
		}
		if len(f.value) > f.most {
			k.Invalid(at, "", "can have at most %d characters", f.most)
		}
	}
}

// newEvent validates a new event of events.k8s.io: deprecated fields must not be set.
func (k *validator) newEvent(e *corev1.Event) {
	if e.EventTime.IsZero() {
		k.Required(field.NewPath("eventTime"), "")
	}
	if e.Type != corev1.EventTypeNormal && e.Type != corev1.EventTypeWarning {
		k.Invalid(field.NewPath("type"), e.Type, "has invalid value: %s", e.Type)
	}
	for _, f := range []struct {
		name string
		set  bool
	}{
		{"firstTimestamp", !e.FirstTimestamp.IsZero()}, {"lastTimestamp", !e.LastTimestamp.IsZero()},
		{"count", e.Count != 0}, {"source", e.Source != corev1.EventSource{}},
	} {
		if f.set {
			k.Invalid(field.NewPath(f.name), "", "needs to be unset")
		}
	}
	k.series(e)
}

func (k *validator) series(e *corev1.Event) {
	if e.Series == nil {
		return
	}
	if e.Series.Count < 2 {
		k.Invalid(field.NewPath("series.count"), e.Series.Count, "should be at least 2")
	}
	if e.Series.LastObservedTime.IsZero() {
		k.Required(field.NewPath("series.lastObservedTime"), "")
	}
}

// eventChange validates that only the series of an event of events.k8s.io changes.
func (k *validator) eventChange(e, old *corev1.Event) {
	if !equality.Semantic.DeepEqual(e.Series, old.Series) {
		k.series(e)
	}
	for _, f := range []struct {
		name     string
		now, was any
	}{
		{"involvedObject", e.InvolvedObject, old.InvolvedObject}, {"related", e.Related, old.Related},
		{"reason", e.Reason, old.Reason}, {"message", e.Message, old.Message}, {"type", e.Type, old.Type},
		{"action", e.Action, old.Action},
		{"source", e.Source, old.Source}, {"count", e.Count, old.Count},
		{"firstTimestamp", e.FirstTimestamp, old.FirstTimestamp}, {"lastTimestamp", e.LastTimestamp, old.LastTimestamp},
		{"reportingController", e.ReportingController, old.ReportingController},
		{"reportingInstance", e.ReportingInstance, old.ReportingInstance},
	} {
		k.Immutable(field.NewPath(f.name), f.now, f.was)
	}
	// Clients encode it with microseconds.
	if !e.EventTime.Truncate(time.Microsecond).Equal(old.EventTime.Truncate(time.Microsecond)) {
		k.Invalid(field.NewPath("eventTime"), e.EventTime, "field is immutable")
	}
}
