package main

import (
	"bytes"
	"cmp"
	"io"
	"log/slog"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"berth/control"
)

func TestServeFlags(t *testing.T) {
	t.Parallel()
	type flags struct {
		controllers, names []string
		listen             string
		verbosity          int
	}
	all := []string{"*"}
	for _, c := range []struct {
		name       string
		args       []string
		want       flags
		deprecated []string // flags with a warning
	}{
		{"defaults", nil, flags{controllers: all}, nil},
		{"controllers", []string{"--controllers=*,-scheduler"}, flags{controllers: []string{"*", "-scheduler"}}, nil},
		{"repeated controllers", []string{"--controllers=*", "--controllers=-scheduler"},
			flags{controllers: []string{"*", "-scheduler"}}, nil},
		{"off", []string{"--off", "scheduler"}, flags{controllers: []string{"-scheduler", "*"}}, []string{"off"}},
		{"off and controllers", []string{"--off=a,b", "--controllers=*,-c"},
			flags{controllers: []string{"-a", "-b", "*", "-c"}}, []string{"off"}},
		{"TLS SANs", []string{"--tls-san=a,b", "--tls-san=c"},
			flags{controllers: all, names: []string{"a", "b", "c"}}, nil},
		{"name", []string{"--name=a"}, flags{controllers: all, names: []string{"a"}}, []string{"name"}},
		{"services routed", []string{"--services-routed"}, flags{controllers: all}, []string{"services-routed"}},
		{"name and TLS SAN", []string{"--name=a", "--tls-san=b"},
			flags{controllers: all, names: []string{"b", "a"}}, []string{"name"}},
		{"bind address", []string{"--bind-address=10.0.0.1"}, flags{controllers: all, listen: "10.0.0.1:6443"}, nil},
		{"secure port", []string{"--secure-port=0"}, flags{controllers: all, listen: "[::]:0"}, nil},
		{"address and port", []string{"--secure-port=443", "--bind-address=fd00::1"},
			flags{controllers: all, listen: "[fd00::1]:443"}, nil},
		{"listen", []string{"--listen=localhost:443"}, flags{controllers: all, listen: "localhost:443"},
			[]string{"listen"}},
		{"verbosity", []string{"-v=2"}, flags{controllers: all, verbosity: 2}, nil},
		{"debug", []string{"--debug"}, flags{controllers: all, verbosity: debugVerbosity}, []string{"debug"}},
		{"no debug", []string{"--debug=false"}, flags{controllers: all}, []string{"debug"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			config, old := control.Default(), &deprecatedFlags{}
			var log, out bytes.Buffer
			var verbosity int
			config.Log = slog.New(slog.NewTextHandler(&log, nil))
			f := pflag.NewFlagSet("serve", pflag.ContinueOnError)
			f.SetOutput(&out)
			serveFlags(f, &config, &verbosity)
			old.addTo(f, &config, &verbosity)
			if err := f.Parse(c.args); err != nil {
				t.Fatal(err)
			}
			old.applyTo(&config)
			got := flags{config.Controllers, config.TLSSANs, config.Listen, verbosity}
			c.want.listen = cmp.Or(c.want.listen, "[::]:6443")
			if !reflect.DeepEqual(got, c.want) {
				t.Errorf("got %+v, want %+v", got, c.want)
			}
			for name := range deprecatedServeFlags {
				want := slices.Contains(c.deprecated, name)
				if got := strings.Contains(out.String(), "Flag --"+name+" has been deprecated, "); got != want {
					t.Errorf("warning for --%s: %q", name, out.String())
				}
				logged := strings.Contains(log.String(), "msg=\"flag deprecated\" flag="+name)
				if logged != want {
					t.Errorf("log for --%s: %q", name, log.String())
				}
			}
		})
	}
}

func TestListenFlagErrors(t *testing.T) {
	t.Parallel()
	for _, arg := range []string{"--bind-address=host", "--bind-address=10.0.0.1:80", "--secure-port=65536",
		"--secure-port=https"} {
		f, config, verbosity := pflag.NewFlagSet("serve", pflag.ContinueOnError), control.Default(), 0
		f.SetOutput(io.Discard)
		serveFlags(f, &config, &verbosity)
		if err := f.Parse([]string{arg}); err == nil {
			t.Errorf("%s: no error, address %s", arg, config.Listen)
		}
	}
}

// TestFormerFlags checks that the former spelling of a flag sets it, with a warning.
func TestFormerFlags(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		command      *cobra.Command
		former, name string
	}{
		{tokenCreate(&clientOptions{}), "valid", "ttl"},
		{kubeconfigCommand(), "valid", "validity-period"},
	} {
		var out bytes.Buffer
		f := c.command.Flags()
		f.SetOutput(&out)
		if err := f.Parse([]string{"--" + c.former + "=90s"}); err != nil {
			t.Fatal(err)
		}
		if got := f.Lookup(c.name).Value.String(); got != "1m30s" {
			t.Errorf("--%s: --%s is %s", c.former, c.name, got)
		}
		if !strings.Contains(out.String(), "deprecated, use --"+c.name) {
			t.Errorf("--%s: warning %q", c.former, out.String())
		}
	}
}

func TestFlagsHaveTypes(t *testing.T) {
	serveCommand().Flags().VisitAll(func(f *pflag.Flag) {
		if name, _ := pflag.UnquoteUsage(f); name == "" && f.Value.Type() != "bool" && f.Deprecated == "" {
			t.Errorf("the help text of --%s prints no type", f.Name)
		}
	})
}
