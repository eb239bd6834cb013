package pod

import (
	"testing"
	"time"

	"berth/agent/plan"
	"berth/agent/status"
)

// TestStoredReasons decodes histories of this release and of earlier ones, which used other codes.
func TestStoredReasons(t *testing.T) {
	since := time.Date(2026, 5, 4, 3, 2, 1, 0, time.UTC)
	stored, err := EncodeReasons([]status.ReportedReason{
		{Reason: plan.Reason{Code: plan.ReasonRecreate, Message: "m"}, Since: since},
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name, stored, want string // the code, empty: an error
	}{
		{"this release", string(stored), "RecreatePending"},
		{"Returns", `{"version":1,"told":[{"Code":"Returns"}]}`, "RecreatePending"},
		{"LookFailed", `{"version":1,"told":[{"Code":"LookFailed"}]}`, "ObserveFailed"},
		{"another reason", `{"version":1,"told":[{"Code":"BackOff"}]}`, "BackOff"},
		{"a later version", `{"version":2}`, ""},
		{"damaged", `{"version":1`, ""},
	} {
		got, err := decodeReasons([]byte(tt.stored))
		if (err != nil) != (tt.want == "") || err == nil && (len(got) != 1 || got[0].Code != tt.want) {
			t.Errorf("%s: got %+v, %v, want code %q", tt.name, got, err, tt.want)
		}
	}
}
