package cli

import (
	"context"
	"errors"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"

	"berth/internal/cis"
	"berth/nodeapi"
)

func TestCheckRunsLocallyWithoutAgent(t *testing.T) {
	t.Parallel()
	broken := nodeapi.CheckReport{
		Items: []nodeapi.CheckItem{
			{Name: "runtime", Essential: true, Detail: "connection refused", Remedy: "start it"},
		},
	}
	for _, c := range []struct {
		name           string
		args           []string
		report         nodeapi.CheckReport
		fails          error
		stdout, stderr string // prefixes
		code           int
	}{
		{"the first line says so", nil, checkReport(), nil, "berth is not running: the checks were run locally\n", "",
			1},
		{
			"failed checks are printed", nil, broken, nil,
			"berth is not running: the checks were run locally\nFAIL  runtime  connection refused\n", "", 1,
		},
		{
			"programs read the report alone", []string{"-o", "json"}, broken, nil, "{",
			"berth is not running: the checks were run locally\n", 1,
		},
		{
			"the command accepts the flags of the check", []string{"--config", "x"}, nodeapi.CheckReport{}, nil,
			"berth is not running: the checks were run locally\n\npods can run on this node\n", "", 0,
		},
		{
			"an invalid configuration is an error", nil, nodeapi.CheckReport{}, errors.New("maxPods: is negative"), "",
			"error: maxPods: is negative\n", 1,
		},
		{
			"the benchmark runs locally", []string{"--cis"}, broken, nil,
			"berth is not running: the checks were run locally\n" + cis.Benchmark, "", 1,
		},
		{
			"programs read the benchmark alone", []string{"--cis", "-o", "json"}, broken, nil, "{",
			"berth is not running: the checks were run locally\n", 1,
		},
		{
			"an invalid configuration fails the benchmark", []string{"--cis"}, broken,
			errors.New("maxPods: is negative"), "", "error: maxPods: is negative\n", 1,
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			flags := pflag.NewFlagSet("run", pflag.ContinueOnError)
			flags.String("config", "", "")
			root := commands(&factory{
				dial: func() (*nodeapi.Client, error) { return nodeapi.Dial(filepath.Join(t.TempDir(), "none.sock")) },
				now:  time.Now, screen: screenOf,
				local: &LocalCheck{
					Flags: flags,
					Run:   func(context.Context) (nodeapi.CheckReport, error) { return c.report, c.fails },
					CIS: func() (cis.Report, error) {
						return cis.Report{Benchmark: cis.Benchmark, Summary: map[cis.Verdict]int{cis.Fail: 1}}, c.fails
					},
				},
			})
			var stdout, stderr strings.Builder
			code := -1
			for _, cmd := range root {
				if cmd.Name() == "check" {
					cmd.SetArgs(append([]string{}, c.args...))
					cmd.SetOut(&stdout)
					cmd.SetErr(&stderr)
					code = PrintError(&stderr, cmd.ExecuteContext(t.Context()))
				}
			}
			if code != c.code || !strings.HasPrefix(stdout.String(), c.stdout) ||
				!strings.HasPrefix(stderr.String(), c.stderr) ||
				(c.stdout == "") != (stdout.String() == "") {
				t.Errorf("exit code %d\n%s\n%s", code, stdout.String(), stderr.String())
			}
		})
	}
}
