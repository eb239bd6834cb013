package scheme

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/conversion"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
)

// addEvents makes events.k8s.io a second view of the core group's events. Its internal type is the
// core type, so both groups share one store.
func addEvents(s *runtime.Scheme) {
	internal := schema.GroupVersion{Group: eventsv1.GroupName, Version: runtime.APIVersionInternal}
	s.AddKnownTypeWithName(internal.WithKind("Event"), &corev1.Event{})
	s.AddKnownTypeWithName(internal.WithKind("EventList"), &corev1.EventList{})

	addConversion(s, eventFromCore)
	addConversion(s, eventToCore)
	addConversion(s, func(in *corev1.EventList, out *eventsv1.EventList) {
		out.ListMeta = in.ListMeta
		out.Items = make([]eventsv1.Event, len(in.Items))
		for i := range in.Items {
			eventFromCore(&in.Items[i], &out.Items[i])
		}
	})
	addConversion(s, func(in *eventsv1.EventList, out *corev1.EventList) {
		out.ListMeta = in.ListMeta
		out.Items = make([]corev1.Event, len(in.Items))
		for i := range in.Items {
			eventToCore(&in.Items[i], &out.Items[i])
		}
	})
}

// addConversion adds a conversion that cannot fail.
func addConversion[A, B any](s *runtime.Scheme, fill func(in *A, out *B)) {
	utilruntime.Must(s.AddConversionFunc((*A)(nil), (*B)(nil), func(a, b any, _ conversion.Scope) error {
		in, isIn := a.(*A)
		out, isOut := b.(*B)
		if !isIn || !isOut {
			return fmt.Errorf("convert %T to %T: the conversion is from %T to %T", a, b, in, out)
		}
		fill(in, out)
		return nil
	}))
}

func eventFromCore(in *corev1.Event, out *eventsv1.Event) {
	out.ObjectMeta = in.ObjectMeta
	out.EventTime = in.EventTime
	if in.Series != nil {
		out.Series = &eventsv1.EventSeries{Count: in.Series.Count, LastObservedTime: in.Series.LastObservedTime}
	}
	out.ReportingController = in.ReportingController
	out.ReportingInstance = in.ReportingInstance
	out.Action = in.Action
	out.Reason = in.Reason
	out.Regarding = in.InvolvedObject
	out.Related = in.Related
	out.Note = in.Message
	out.Type = in.Type
	out.DeprecatedSource = in.Source
	out.DeprecatedFirstTimestamp = in.FirstTimestamp
	out.DeprecatedLastTimestamp = in.LastTimestamp
	out.DeprecatedCount = in.Count
}

func eventToCore(in *eventsv1.Event, out *corev1.Event) {
	out.TypeMeta = metav1.TypeMeta{}
	out.ObjectMeta = in.ObjectMeta
	out.EventTime = in.EventTime
	if in.Series != nil {
		out.Series = &corev1.EventSeries{Count: in.Series.Count, LastObservedTime: in.Series.LastObservedTime}
	}
	out.ReportingController = in.ReportingController
	out.ReportingInstance = in.ReportingInstance
	out.Action = in.Action
	out.Reason = in.Reason
	out.InvolvedObject = in.Regarding
	out.Related = in.Related
	out.Message = in.Note
	out.Type = in.Type
	out.Source = in.DeprecatedSource
	out.FirstTimestamp = in.DeprecatedFirstTimestamp
	out.LastTimestamp = in.DeprecatedLastTimestamp
	out.Count = in.DeprecatedCount
}
