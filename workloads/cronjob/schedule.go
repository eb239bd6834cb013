package cronjob

import (
	"errors"
	"strings"
	"time"

	"github.com/robfig/cron/v3"
)

// maxMissed is how many missed times are normal.
const maxMissed = 100

// schedule is a parsed schedule in a time zone.
type schedule struct {
	cron.Schedule
	location *time.Location
}

// parse reads a schedule of five fields or a descriptor such as @hourly.
func parse(text string, location *time.Location) (schedule, error) {
	if strings.Contains(text, "TZ") {
		// The parser would read the file of the time zone. The API does not accept such a schedule.
		return schedule{}, errors.New("cannot use TZ or CRON_TZ in schedule, use timeZone field instead")
	}
	parsed, err := cron.ParseStandard(text)
	if err != nil {
		return schedule{}, err //nolint:wrapcheck // users read it in an event
	}
	if fields, ok := parsed.(*cron.SpecSchedule); ok {
		fields.Location = location
	}
	return schedule{parsed, location}, nil
}

// next returns the first time of the schedule after t, or zero if there is none.
func (s schedule) next(t time.Time) time.Time {
	return s.Next(t.In(s.location))
}

// missed returns the latest time of the schedule after earliest that is not after now, and how many there are, at most
// maxMissed+1. Zero: there is none.
func (s schedule) missed(earliest, now time.Time) (latest time.Time, n int) {
	for t := s.next(earliest); !t.IsZero() && !t.After(now); t = s.next(t) {
		latest = t
		if n++; n > maxMissed {
			return s.latest(earliest, now), n
		}
	}
	return latest, n
}

// latest returns the latest time of the schedule after earliest that is not after now. There is one.
func (s schedule) latest(earliest, now time.Time) (out time.Time) {
	if every, ok := s.Schedule.(cron.ConstantDelaySchedule); ok {
		return now.Add(-(now.Sub(s.next(earliest)) % every.Delay))
	}
	// Look back ever further: most schedules have a time shortly before now.
	for back := time.Minute; ; back *= 2 {
		from := now.Add(-back)
		if from.Before(earliest) {
			from = earliest
		}
		for t := s.next(from); !t.IsZero() && !t.After(now); t = s.next(t) {
			out = t
		}
		if !out.IsZero() || from.Equal(earliest) {
			return out
		}
	}
}
