package main

import (
	"bytes"
	"log/slog"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"berth/control"
)

func TestServeFlags(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name        string
		args        []string
		controllers []string
		names       []string
		deprecated  []string // flags with a warning
	}{
		{"defaults", nil, []string{"*"}, nil, nil},
		{"controllers", []string{"--controllers=*,-scheduler"}, []string{"*", "-scheduler"}, nil, nil},
		{"repeated controllers", []string{"--controllers=*", "--controllers=-scheduler"}, []string{"*", "-scheduler"},
			nil,
			nil},
		{"off", []string{"--off", "scheduler"}, []string{"-scheduler", "*"}, nil, []string{"off"}},
		{"off and controllers", []string{"--off=a,b", "--controllers=*,-c"}, []string{"-a", "-b", "*", "-c"}, nil,
			[]string{"off"}},
		{"TLS SANs", []string{"--tls-san=a,b", "--tls-san=c"}, []string{"*"}, []string{"a", "b", "c"}, nil},
		{"name", []string{"--name=a"}, []string{"*"}, []string{"a"}, []string{"name"}},
		{"services routed", []string{"--services-routed"}, []string{"*"}, nil, []string{"services-routed"}},
		{"name and TLS SAN", []string{"--name=a", "--tls-san=b"}, []string{"*"}, []string{"b", "a"}, []string{"name"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			config, old := control.Default(), &deprecatedFlags{}
			var log, out bytes.Buffer
			config.Log = slog.New(slog.NewTextHandler(&log, nil))
			f := pflag.NewFlagSet("serve", pflag.ContinueOnError)
			f.SetOutput(&out)
			serveFlags(f, &config)
			old.addTo(f)
			if err := f.Parse(c.args); err != nil {
				t.Fatal(err)
			}
			old.applyTo(&config)
			if !slices.Equal(config.Controllers, c.controllers) || !slices.Equal(config.TLSSANs, c.names) {
				t.Errorf("got %q and %q, want %q and %q", config.Controllers, config.TLSSANs, c.controllers, c.names)
			}
			for _, name := range []string{"off", "name", "services-routed"} {
				want := slices.Contains(c.deprecated, name)
				if got := strings.Contains(out.String(), "Flag --"+name+" has been deprecated, "); got != want {
					t.Errorf("warning for --%s: %q", name, out.String())
				}
				logged := strings.Contains(log.String(), "msg=\"flag deprecated") &&
					strings.Contains(log.String(), "flag="+name)
				if logged != want {
					t.Errorf("log for --%s: %q", name, log.String())
				}
			}
		})
	}
}

func TestFlagsHaveTypes(t *testing.T) {
	serveCommand().Flags().VisitAll(func(f *pflag.Flag) {
		if name, _ := pflag.UnquoteUsage(f); name == "" && f.Value.Type() != "bool" {
			t.Errorf("the help text of --%s prints no type", f.Name)
		}
	})
}
