package plan

import (
	"errors"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// TestCreatedEventPrecedesFailedStart checks that the event Created is recorded if and only if the
// container was created, also when its start fails.
func TestCreatedEventPrecedesFailedStart(t *testing.T) {
	t.Parallel()
	start := StartContainer{Name: "app"}
	for _, row := range []struct {
		name    string
		outcome Outcome
		want    string
	}{
		{"created, not started", Outcome{Action: start, Container: &Container{ID: "1"},
			Err: &Error{Reason: "RunContainerError", Err: errors.New("no such file")}}, "Created Failed"},
		{"not created", Outcome{Action: start, Container: &Container{},
			Err: &Error{Reason: "CreateContainerError", Err: errors.New("no profile")}}, "Failed"},
		{"unknown", Outcome{Action: start, Err: &Error{Reason: "RunContainerError", Err: errors.New("gone")}},
			"Failed"},
		{"created and started", Outcome{Action: start, Container: &Container{ID: "1"}}, "Created Started"},
	} {
		got := ""
		for _, r := range ActionFinished(row.outcome) {
			got += " " + r.Code
		}
		if got != " "+row.want {
			t.Errorf("%s:%s, want %s", row.name, got, row.want)
		}
	}
}

func TestHookEvents(t *testing.T) {
	t.Parallel()
	for _, r := range []struct {
		a    Action
		kind ErrorKind
		want string
	}{
		{PostStart{"id", "app"}, Other, "FailedPostStartHook/PostStartHook failed"},
		{PreStop{"id", "app"}, Other, "FailedPreStopHook/PreStopHook failed"},
		{PreStop{"id", "app"}, Unavailable, ""},
		{PostStart{"id", "app"}, Canceled, ""},
	} {
		got := ""
		for _, e := range ActionFinished(Outcome{Action: r.a,
			Err: &Error{Kind: r.kind, Err: errors.New("secret output")}}) {
			got += e.Code + "/" + e.Message
			if e.Target != "app" || e.EventType != corev1.EventTypeWarning {
				t.Errorf("%+v", e)
			}
		}
		if got != r.want {
			t.Errorf("%T %d: %q, want %q", r.a, r.kind, got, r.want)
		}
	}
}
