// Package cronjob decides what a CronJob needs next: Jobs to create and delete, and the status. It is pure: the caller
// loads the time zone.
//
// # Invariants
//
//   - C1: At most one Job is created for each time of the schedule, whatever is killed between writes: the name of the
//     Job is derived from the time.
//   - C2: With the concurrency policy Forbid, no Job is created while one that the CronJob has created is unfinished.
//     With Replace, the unfinished Jobs are deleted first.
//   - C3: No Job is created before its time, after startingDeadlineSeconds, or for a suspended CronJob.
//   - C4: Of several missed times, only the latest gets a Job. A time before a change of the schedule gets none.
//   - C5: A finished Job is deleted only if as many newer ones of its outcome exist as the history limit allows.
//
// # Differences from upstream
//
// Upstream estimates the number of missed times from the first interval; this package counts them. An entry of
// status.active has no UID until the Job has been observed. If a Job of another owner has the name of the next one,
// that time of the schedule is skipped. After a change of the schedule, upstream waits until its next time, but counts
// earlier times as missed when something else makes it decide before.
package cronjob
