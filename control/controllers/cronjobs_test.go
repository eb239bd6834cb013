package controllers

import (
	"testing"
	"testing/synctest"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestChangedScheduleStartsWithItsNextTime: times before the change of a schedule have not been missed.
func TestChangedScheduleStartsWithItsNextTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cron := &batchv1.CronJob{ObjectMeta: metav1.ObjectMeta{
			Namespace: "default", Name: "tick", UID: "cron", CreationTimestamp: metav1.Now(),
		}}
		cron.Spec.Schedule, cron.Spec.TimeZone = "0 0 2 1 *", new("Etc/UTC") // tomorrow
		client := newNamingClient(cron)
		startControllers(t, Config{Client: client}, []string{CronJobs})
		crons := client.BatchV1().CronJobs("default")
		jobs := func(when string, want int) {
			t.Helper()
			synctest.Wait()
			list, err := client.BatchV1().Jobs("default").List(t.Context(), metav1.ListOptions{})
			if err != nil || len(list.Items) != want {
				t.Errorf("%s: %d jobs (%v), want %d", when, len(list.Items), err, want)
			}
		}
		time.Sleep(time.Hour + 15*time.Minute)
		jobs("before the change", 0)
		cron = cron.DeepCopy()
		cron.Spec.Schedule = "*/10 * * * *"
		if _, err := crons.Update(t.Context(), cron, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		jobs("after the change", 0)
		time.Sleep(4*time.Minute + time.Second)
		jobs("at the next time", 1)
	})
}
