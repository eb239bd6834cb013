package validation

import (
	"strings"
	"testing"
	_ "time/tzdata" // the test does not depend on the time zones of the host

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"berth/internal/rules/rulestest"
)

// tested describes the kinds to rulestest. The fuzz test of control/validation covers these kinds too.
var tested = rulestest.Kinds{RulesFor: RulesFor, Empty: func(t testing.TB, kind schema.GroupKind) runtime.Object {
	t.Helper()
	scheme := runtime.NewScheme()
	if err := appsv1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	if err := batchv1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	obj, err := scheme.New(kind.WithVersion("v1"))
	if err != nil {
		t.Fatal(err)
	}
	return obj
}}

// TestRules reads cases from testdata/*.yaml.
func TestRules(t *testing.T) {
	t.Parallel()
	tested.RunCases(t)
}

func TestKindsHaveRules(t *testing.T) {
	t.Parallel()
	kinds := Kinds()
	if len(kinds) != 7 {
		t.Errorf("got %d kinds, want 5 of apps and 2 of batch: %v", len(kinds), kinds)
	}
	for _, kind := range kinds {
		if _, known := RulesFor(kind); !known {
			t.Errorf("no rules for %s", kind)
		}
		tested.CheckInvariants(t, kind, tested.Empty(t, kind), tested.Empty(t, kind))
	}
	if _, known := RulesFor(schema.GroupKind{Kind: "Pod"}); known {
		t.Error("rules for a kind of another group")
	}
}

// TestOldStatefulSetsStayValid checks that a StatefulSet that an older version accepted can be scaled.
func TestOldStatefulSetsStayValid(t *testing.T) {
	t.Parallel()
	r, _ := RulesFor(schema.GroupKind{Group: appsv1.GroupName, Kind: "StatefulSet"})
	set := func(replicas int32, image string) *appsv1.StatefulSet {
		labels := map[string]string{"app": "db"}
		s := &appsv1.StatefulSet{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "a.b", ResourceVersion: "1"}}
		s.Spec = appsv1.StatefulSetSpec{Replicas: &replicas, ServiceName: "c.d",
			Selector:             &metav1.LabelSelector{MatchLabels: labels},
			VolumeClaimTemplates: []corev1.PersistentVolumeClaim{{ObjectMeta: metav1.ObjectMeta{Name: "data"}}}}
		s.Spec.Template.Labels = labels
		s.Spec.Template.Spec.Containers = []corev1.Container{{Name: "c", Image: image}}
		r.Default(s)
		return s
	}
	if errs := r.Validate(set(1, "image")); len(errs) == 0 {
		t.Error("a new set like this is valid")
	}
	if errs := r.ValidateUpdate(set(2, "image"), set(1, "image")); len(errs) > 0 {
		t.Errorf("scaled: %v", errs)
	}
	if errs := r.ValidateUpdate(set(1, ""), set(1, "image")); len(errs) == 0 {
		t.Error("an invalid template replaces a valid one")
	}
	if errs := r.ValidateUpdate(set(2, ""), set(1, "")); len(errs) > 0 {
		t.Errorf("invalid template, scaled: %v", errs)
	}
}

// TestOldSchedulesStayValid checks what only an old CronJob may have.
func TestOldSchedulesStayValid(t *testing.T) {
	t.Parallel()
	cron := func(name, schedule, zone string) *batchv1.CronJob {
		c := &batchv1.CronJob{}
		c.Namespace, c.Name, c.ResourceVersion = "a", name, "1"
		c.Spec.Schedule = schedule
		if zone != "" {
			c.Spec.TimeZone = &zone
		}
		return c
	}
	long := strings.Repeat("a", maxCronJobName+1)
	for name, c := range map[string]struct {
		old, next *batchv1.CronJob
		want      string // the field with an error, or ""
	}{
		"time zone in the schedule": {cron("c", "TZ=UTC 0 * * * *", ""), cron("c", "CRON_TZ=UTC 1 * * * *", ""), ""},
		"invalid schedule": {cron("c", "TZ=UTC 0 * * * *", ""), cron("c", "TZ=UTC x * * * *", ""),
			"spec.schedule"},
		"two time zones": {cron("c", "TZ=UTC 0 * * * *", ""), cron("c", "TZ=UTC 0 * * * *", "Etc/UTC"),
			"spec.schedule"},
		"new time zone in the schedule": {cron("c", "0 * * * *", ""), cron("c", "TZ=UTC 0 * * * *", ""),
			"spec.schedule"},
		"removed time zone": {cron("c", "@hourly", "Gone/Zone"), cron("c", "@daily", "Gone/Zone"), ""},
		"unknown time zone": {cron("c", "@hourly", ""), cron("c", "@hourly", "Gone/Zone"), "spec.timeZone"},
		"long name":         {cron(long, "@hourly", ""), cron(long, "@daily", ""), ""},
	} {
		r, _ := RulesFor(schema.GroupKind{Group: batchv1.GroupName, Kind: "CronJob"})
		got := ""
		for _, err := range r.ValidateUpdate(c.next, c.old) {
			if !strings.HasPrefix(err.Field, "spec.jobTemplate") && err.Field != "spec.concurrencyPolicy" {
				got += err.Field
			}
		}
		if got != c.want {
			t.Errorf("%s: errors about %q, want %q", name, got, c.want)
		}
	}
}

// TestOldIndexedJobsStayValid checks that an Indexed Job whose completions an older version has raised beyond valid
// hostnames can still be changed.
func TestOldIndexedJobsStayValid(t *testing.T) {
	t.Parallel()
	r, _ := RulesFor(schema.GroupKind{Group: batchv1.GroupName, Kind: "Job"})
	indexed := func(completions, parallelism int32) *batchv1.Job {
		labels := map[string]string{"a": "b"}
		j := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: strings.Repeat("a", 60),
			ResourceVersion: "1"}}
		j.Spec = batchv1.JobSpec{CompletionMode: new(batchv1.IndexedCompletion), Completions: &completions,
			Parallelism: &parallelism, ManualSelector: new(true), Selector: &metav1.LabelSelector{MatchLabels: labels}}
		j.Spec.Template.Labels, j.Spec.Template.Spec.RestartPolicy = labels, corev1.RestartPolicyNever
		j.Spec.Template.Spec.Containers = []corev1.Container{{Name: "c", Image: "image"}}
		r.Default(j)
		return j
	}
	if errs := r.ValidateUpdate(indexed(1000, 5), indexed(1000, 1000)); len(errs) > 0 {
		t.Errorf("other parallelism: %v", errs)
	}
	if errs := r.ValidateUpdate(indexed(1000, 1000), indexed(50, 50)); len(errs) == 0 {
		t.Error("the completions are raised beyond valid hostnames")
	}
}
