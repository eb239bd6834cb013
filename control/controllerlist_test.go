package control

import (
	"bytes"
	"log/slog"
	"slices"
	"strings"
	"testing"
)

func TestControllerEnabled(t *testing.T) {
	t.Parallel()
	known := []string{"a", "b", SystemNamespaces}
	for _, c := range []struct {
		name string
		list []string
		want []string
	}{
		{"all by default", Default().Controllers, known},
		{"empty list", nil, nil},
		{"one", []string{"a"}, []string{"a"}},
		{"all but one", []string{"*", "-a"}, []string{"b", SystemNamespaces}},
		{"all but one in another order", []string{"-a", "*"}, []string{"b", SystemNamespaces}},
		{"disabled without a star", []string{"-a"}, nil},
		{"first entry wins", []string{"a", "-a"}, []string{"a"}},
		{"first entry wins when it disables", []string{"*", "-a", "a"}, []string{"b", SystemNamespaces}},
		{"named twice", []string{"a", "*", "a"}, known},
		{"deprecated name enabled", []string{"namespaces"}, []string{SystemNamespaces}},
		{"deprecated name disabled", []string{"*", "-namespaces"}, []string{"a", "b"}},
		{"deprecated flag --off", DisableControllers([]string{"*"}, "a", "namespaces"), []string{"b"}},
		{"deprecated flag --off overrides", DisableControllers([]string{"*", "a"}, "a"),
			[]string{"b", SystemNamespaces}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			var got []string
			for _, name := range known {
				if controllerEnabled(c.list, name) {
					got = append(got, name)
				}
			}
			if !slices.Equal(got, c.want) {
				t.Errorf("%q enables %q, want %q", c.list, got, c.want)
			}
		})
	}
}

func TestValidateControllers(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		list []string
		want string // empty: no error
	}{
		{"default", []string{"*"}, ""},
		{"known names", []string{"*", "scheduler", "-replicaset-controller"}, ""},
		{"deprecated names", []string{"-namespaces", "bootstrap-tokens", "kubernetes-service", "service-repair"}, ""},
		{"unknown name", []string{"*", "nonsense"}, `controllers: "nonsense" is not a known controller; known ` +
			`controllers: `},
		{"unknown disabled name", []string{"-nonsense"}, `controllers: "nonsense" is not a known controller`},
		{"known names are listed", []string{"nonsense"}, "namespace-controller, "},
		{"negated star", []string{"-*"}, `controllers: "*" is not a known controller`},
		{"empty name", []string{""}, `controllers: "" is not a known controller`},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			config := Default()
			config.Controllers = c.list
			err := config.Validate()
			if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
				t.Errorf("%q: %v, want %q", c.list, err, c.want)
			}
		})
	}
}

func TestControllerNames(t *testing.T) {
	t.Parallel()
	names := ControllerNames()
	for old, current := range deprecatedControllerNames {
		if !slices.Contains(names, current) || slices.Contains(names, old) {
			t.Errorf("%s is deprecated in favor of %s; the names are %q", old, current, names)
		}
	}
	for _, name := range names {
		if name != schedulerName && !strings.HasSuffix(name, "-controller") {
			t.Errorf("%s does not have the form of upstream's names", name)
		}
	}
}

func TestWarnDeprecatedControllers(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	c := Config{Controllers: []string{"*", "-service-repair", "scheduler"},
		Log: slog.New(slog.NewTextHandler(&log, nil))}
	c.warnDeprecatedControllers()
	const want = `msg="controller name deprecated" controller=service-repair use=service-ip-repair-controller`
	if got := log.String(); strings.Count(got, "\n") != 1 || !strings.Contains(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}
