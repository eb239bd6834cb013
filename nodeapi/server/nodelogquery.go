package server

import (
	"fmt"
	"net/url"
	"regexp"
	"regexp/syntax"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Limits of a query of node logs, as upstream.
const (
	maxQueriedLines    = 100000
	maxQueriedServices = 4
	maxServiceName     = 256
)

// nodeLogQuery is a query of the logs of services of the node, or of one file below /var/log.
type nodeLogQuery struct {
	Services, Files      []string
	SinceTime, UntilTime *time.Time
	TailLines, Boot      *int
	Pattern              string // regular expression
}

// options reports whether the query restricts the lines.
func (q *nodeLogQuery) options() bool {
	return q.SinceTime != nil || q.UntilTime != nil || q.TailLines != nil || q.Boot != nil || q.Pattern != ""
}

// parseNodeLogQuery reads the parameters of a request. Nil without an error: the request is for a file or
// a directory.
func parseNodeLogQuery(values url.Values) (*nodeLogQuery, field.ErrorList) {
	q, errs := &nodeLogQuery{Pattern: values.Get("pattern")}, field.ErrorList(nil)
	for _, s := range values["query"] {
		switch {
		case strings.ContainsAny(s, `/\`): // the name of a service contains none
			q.Files = append(q.Files, s)
		case strings.TrimSpace(s) != "":
			q.Services = append(q.Services, s)
		}
	}
	if values.Has("query") && len(q.Files)+len(q.Services) == 0 {
		errs = append(errs, field.Invalid(field.NewPath("query"), values["query"], "query cannot be empty"))
	}
	for name, into := range map[string]**time.Time{"sinceTime": &q.SinceTime, "untilTime": &q.UntilTime} {
		if text := values.Get(name); text != "" {
			at, err := time.Parse(time.RFC3339, text)
			if err != nil {
				errs = append(errs, field.Invalid(field.NewPath(name), text, "invalid time format"))
			}
			*into = &at
		}
	}
	for name, into := range map[string]**int{"boot": &q.Boot, "tailLines": &q.TailLines} {
		if text := values.Get(name); text != "" {
			n, err := strconv.Atoi(text)
			if err != nil {
				errs = append(errs, field.Invalid(field.NewPath(name), text, err.Error()))
			}
			*into = &n
		}
	}
	if len(errs) > 0 || len(q.Files)+len(q.Services) == 0 && !q.options() {
		return nil, errs
	}
	return q, nil
}

// unsafeServiceCharacters are never passed to journalctl.
var unsafeServiceCharacters = regexp.MustCompile(`[^a-zA-Z\-_0-9@]+`)

// validate returns every error of a query.
func (q *nodeLogQuery) validate() (errs field.ErrorList) {
	at := field.NewPath("query")
	for _, s := range q.Services {
		switch {
		case len(s) > maxServiceName:
			errs = append(errs, field.TooLong(at, s, maxServiceName))
		case unsafeServiceCharacters.MatchString(s) || strings.HasPrefix(s, "-"):
			errs = append(errs, field.Invalid(at, s, "input contains unsupported characters"))
		}
	}
	if len(q.Services) > maxQueriedServices {
		errs = append(errs, field.TooMany(at, len(q.Services), maxQueriedServices))
	}
	switch {
	case len(q.Files)+len(q.Services) == 0:
		errs = append(errs, field.Required(at, "cannot be empty with options"))
	case len(q.Files) > 0 && len(q.Services) > 0:
		both := fmt.Sprintf("%v, %v", q.Files, q.Services)
		errs = append(errs, field.Invalid(at, both, "cannot specify a file and service"))
	case len(q.Files) > 1:
		errs = append(errs, field.Invalid(at, q.Files, "cannot specify more than one file"))
	case len(q.Files) == 1 && q.options():
		errs = append(errs, field.Invalid(at, q.Files, "cannot specify file with options"))
	}
	if q.SinceTime != nil && q.UntilTime != nil && q.SinceTime.After(*q.UntilTime) {
		errs = append(errs, field.Invalid(field.NewPath("untilTime"), q.UntilTime, "must be after `sinceTime`"))
	}
	if q.Boot != nil && *q.Boot > 0 {
		errs = append(errs, field.Invalid(field.NewPath("boot"), *q.Boot, "must be less than 1"))
	}
	if q.TailLines != nil && (*q.TailLines < 0 || *q.TailLines > maxQueriedLines) {
		errs = append(errs, field.Invalid(field.NewPath("tailLines"), *q.TailLines,
			fmt.Sprintf("must be between 0 and %d, inclusive", maxQueriedLines)))
	}
	if _, err := syntax.Parse(q.Pattern, syntax.Perl); err != nil {
		errs = append(errs, field.Invalid(field.NewPath("pattern"), q.Pattern, err.Error()))
	}
	return errs
}

// journalTime is the format of times for journalctl, which needs the time zone after them.
const journalTime = "2006-01-02 15:04:05"

// journalArgs returns the arguments of journalctl for the logs of services.
func (q *nodeLogQuery) journalArgs(services []string) []string {
	args := []string{"--utc", "--no-pager", "--output=short-precise"}
	if q.SinceTime != nil {
		args = append(args, "--since="+q.SinceTime.UTC().Format(journalTime)+" UTC")
	}
	if q.UntilTime != nil {
		args = append(args, "--until="+q.UntilTime.UTC().Format(journalTime)+" UTC")
	}
	if q.TailLines != nil {
		args = append(args, "--pager-end", "--lines="+strconv.Itoa(*q.TailLines))
	}
	for _, s := range services {
		args = append(args, "--unit="+s)
	}
	if q.Pattern != "" {
		args = append(args, "--grep="+q.Pattern, "--case-sensitive=true")
	}
	if q.Boot != nil {
		args = append(args, "--boot", strconv.Itoa(*q.Boot))
	}
	return args
}
