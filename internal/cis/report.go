package cis

import (
	"fmt"
	"io"
	"slices"
	"strings"
)

// Benchmark is the version of the benchmark whose controls are checked, and the Kubernetes versions it is for. The
// numbers and titles are those of v1.12 too.
const Benchmark = "CIS Kubernetes Benchmark v2.0 (Kubernetes 1.34 to 1.35)"

// Verdict is the result of a control.
type Verdict string

const (
	// Pass means that the control is met.
	Pass Verdict = "PASS"
	// Fail means that the control is not met.
	Fail Verdict = "FAIL"
	// Accepted means that a setting differs from the recommendation, and the evidence has the reason for it.
	Accepted Verdict = "ACCEPTED"
	// NotApplicable means that what the control is about does not exist. The evidence has the reason.
	NotApplicable Verdict = "N/A"
	// Manual means that a person has to decide. The remedy says what to look at.
	Manual Verdict = "MANUAL"
	// NotChecked means that the facts could not be read. The evidence has the cause.
	NotChecked Verdict = "NOTCHECKED"
)

// Verdicts returns all verdicts in the order of the summary.
func Verdicts() []Verdict { return []Verdict{Pass, Fail, Accepted, NotApplicable, Manual, NotChecked} }

// Finding is what the check of a control has found.
type Finding struct {
	Verdict Verdict `json:"verdict"`
	// Evidence is what was found, or the reason of the verdict. It contains no secrets.
	Evidence string `json:"evidence"`
	// Remedy is what to change after Fail, or what to look at for Manual.
	Remedy string `json:"remedy,omitempty"`
}

// Result is a control with its finding.
type Result struct {
	Control
	Finding
}

// Report has the results of controls in their order.
type Report struct {
	Benchmark string          `json:"benchmark"`
	Summary   map[Verdict]int `json:"summary"`
	Results   []Result        `json:"results"`
}

// Check returns a function's result for each control of the given sections. A control without a function is not
// checked.
func Check[F any](controls []Control, checks map[string]func(F) Finding, facts F) Report {
	r := Report{Benchmark: Benchmark, Summary: map[Verdict]int{}}
	for _, c := range controls {
		finding := Finding{Verdict: NotChecked, Evidence: "no check for this control"}
		if check := checks[c.ID]; check != nil {
			finding = check(facts)
		}
		r.Results = append(r.Results, Result{c, finding})
		r.Summary[finding.Verdict]++
	}
	return r
}

// ExitCode returns 1 if a control failed, 2 if none failed but one was not checked, and otherwise 0.
func (r Report) ExitCode() int {
	switch {
	case r.Summary[Fail] > 0:
		return 1
	case r.Summary[NotChecked] > 0:
		return 2
	}
	return 0
}

// SummaryLine returns the number of controls by verdict.
func (r Report) SummaryLine() string {
	words := map[Verdict]string{Pass: "passed", Fail: "failed", Accepted: "accepted", NotApplicable: "not applicable",
		Manual: "to review manually", NotChecked: "not checked"}
	var parts []string
	for _, v := range Verdicts() {
		parts = append(parts, fmt.Sprintf("%d %s", r.Summary[v], words[v]))
	}
	return fmt.Sprintf("%d controls: %s", len(r.Results), strings.Join(parts, ", "))
}

// Write writes the report as a table for each section, followed by the summary.
func (r Report) Write(w io.Writer) error {
	idWidth, verdictWidth, titleWidth := len("ID"), len("VERDICT"), len("TITLE")
	for _, one := range r.Results {
		idWidth, verdictWidth = max(idWidth, len(one.ID)), max(verdictWidth, len(one.Verdict))
		titleWidth = max(titleWidth, len(one.Title))
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s\n", r.Benchmark)
	section := ""
	for _, one := range r.Results {
		if s := one.Section(); s != section {
			section = s
			fmt.Fprintf(&b, "\n%s %s\n", s, sectionTitles[s])
			fmt.Fprintf(&b, "%-*s   %-*s   %-*s   EVIDENCE\n", idWidth, "ID", verdictWidth, "VERDICT", titleWidth,
				"TITLE")
		}
		fmt.Fprintf(&b, "%-*s   %-*s   %-*s   %s\n", idWidth, one.ID, verdictWidth, one.Verdict, titleWidth, one.Title,
			printable(one.Evidence))
		if one.Remedy != "" {
			label := "remedy"
			if one.Verdict == Manual {
				label = "review"
			}
			fmt.Fprintf(&b, "%-*s   %-*s   %s: %s\n", idWidth, "", verdictWidth, "", label, printable(one.Remedy))
		}
	}
	fmt.Fprintf(&b, "\n%s\n", r.SummaryLine())
	_, err := io.WriteString(w, b.String())
	return err
}

// printable replaces control characters, which file names and error messages can contain.
func printable(text string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return ' '
		}
		return r
	}, text)
}

// maxListed is how many names List prints.
const maxListed = 5

// List returns the sorted names, separated by commas. Names beyond the first few are only counted.
func List(names []string) string {
	sorted := slices.Compact(slices.Sorted(slices.Values(names)))
	if len(sorted) <= maxListed {
		return strings.Join(sorted, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(sorted[:maxListed], ", "), len(sorted)-maxListed)
}

// Passed returns a finding with evidence.
func Passed(format string, args ...any) Finding {
	return Finding{Verdict: Pass, Evidence: fmt.Sprintf(format, args...)}
}

// Failed returns a finding with evidence and what to change.
func Failed(remedy, format string, args ...any) Finding {
	return Finding{Verdict: Fail, Evidence: fmt.Sprintf(format, args...), Remedy: remedy}
}

// ToReview returns a finding with evidence and what to look at.
func ToReview(lookAt, format string, args ...any) Finding {
	return Finding{Verdict: Manual, Evidence: fmt.Sprintf(format, args...), Remedy: lookAt}
}

// Deviation returns the finding of a setting that differs from the recommendation for a reason.
func Deviation(format string, args ...any) Finding {
	return Finding{Verdict: Accepted, Evidence: fmt.Sprintf(format, args...)}
}

// Absent returns the finding of a control whose subject does not exist.
func Absent(format string, args ...any) Finding {
	return Finding{Verdict: NotApplicable, Evidence: fmt.Sprintf(format, args...)}
}

// Unknown returns the finding of a control whose facts could not be read.
func Unknown(format string, args ...any) Finding {
	return Finding{Verdict: NotChecked, Evidence: "not checked: " + fmt.Sprintf(format, args...)}
}
