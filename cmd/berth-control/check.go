package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"time"

	"github.com/spf13/cobra"

	"berth/control"
	controlcis "berth/control/cis"
	"berth/internal/cis"
	"berth/systemd/install"
)

// exitError sets the exit code of the program. Nothing is left to print.
type exitError struct{ code int }

func (e *exitError) Error() string { return fmt.Sprintf("exit code %d", e.code) }

// checkOptions holds the flags of check besides those of serve.
type checkOptions struct {
	config             control.Config
	old                deprecatedFlags
	file, format, path string
	verbosity          int
	cis                bool
}

func checkCommand() *cobra.Command {
	o := &checkOptions{config: control.Default()}
	cmd := &cobra.Command{
		Use:   "check --cis",
		Short: "Check the server and the cluster against the CIS Kubernetes Benchmark",
		Long: `Check the controls of the ` + cis.Benchmark + `, chapters 1, 2, 3
and 5: the files of the server on this host, its settings, and the objects of the cluster. Settings come from the
configuration file and from the same flags as those of serve: give check the flags that the service has. Requests to
the running server use the administrator kubeconfig. The command changes nothing and prints no secrets. "berth check
--cis" checks chapter 4 on each node.

Verdicts:
  PASS        the control is met
  FAIL        the control is not met
  ACCEPTED    a setting differs from the recommendation for the reason in EVIDENCE
  N/A         what the control is about does not exist, for the reason in EVIDENCE
  MANUAL      a person has to decide; the review says what to look at
  NOTCHECKED  files or the server could not be read

The exit code is 1 if a control failed, and 2 if none failed but controls were not checked, for example because the
server is not running.`,
		Example: `  berth-control check --cis
  berth-control check --cis -o json | jq '.results[] | select(.verdict == "FAIL")'`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return o.run(cmd) },
	}
	f := cmd.Flags()
	serveFlags(f, &o.config, &o.verbosity)
	o.old.addTo(f, &o.config, &o.verbosity)
	f.StringVar(&o.file, "config", configFile, "configuration file of the server")
	f.StringVar(&o.path, "kubeconfig", "", "administrator kubeconfig (default DATA-DIR/admin.kubeconfig)")
	f.StringVarP(&o.format, "output", "o", "", "output format: json; default: a table")
	f.BoolVar(&o.cis, "cis", false, "check the controls of the CIS Kubernetes Benchmark")
	return cmd
}

func (o *checkOptions) run(cmd *cobra.Command) error {
	switch {
	case !o.cis:
		return errors.New("cis: required: select the checks with --cis")
	case o.format != "" && o.format != "json":
		return fmt.Errorf("output: %q is not supported: must be json", o.format)
	}
	o.config.Log = newLog(o.verbosity)
	if err := o.loadConfig(cmd); err != nil {
		return err
	}
	if err := o.config.Validate(); err != nil {
		return err
	}
	if o.path == "" {
		o.path = o.config.AdminKubeconfig()
	}
	report := controlcis.Check(controlcis.Read(cmd.Context(), controlcis.Options{
		Config: o.config, ConfigFile: o.file, Units: install.UnitFiles("berth-control"),
		Kubeconfig: o.path, Now: time.Now(),
	}))
	if err := o.write(cmd.OutOrStdout(), report); err != nil {
		return err
	}
	if code := report.ExitCode(); code != 0 {
		return &exitError{code}
	}
	return nil
}

// loadConfig applies the configuration file. A missing file is an error only when --config names it.
func (o *checkOptions) loadConfig(cmd *cobra.Command) error {
	f, err := control.ReadConfigFile(o.file)
	switch {
	case errors.Is(err, fs.ErrNotExist) && !cmd.Flags().Changed("config"):
		o.file = ""
	case err != nil:
		return err
	default:
		f.ApplyTo(&o.config, cmd.Flags().Changed)
	}
	o.old.applyTo(&o.config)
	return nil
}

func (o *checkOptions) write(w io.Writer, report cis.Report) error {
	if o.format == "" {
		return report.Write(w)
	}
	text, err := json.MarshalIndent(report, "", "    ")
	if err != nil {
		return err
	}
	_, err = w.Write(append(text, '\n'))
	return err
}
