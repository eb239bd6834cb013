package control

import (
	"fmt"
	"slices"
	"strings"
)

// allControllers is the entry of Config.Controllers that enables all controllers.
const allControllers = "*"

// deprecatedControllerNames maps former names of controllers to their names. They are accepted for
// one release.
var deprecatedControllerNames = map[string]string{
	"namespaces":         SystemNamespaces,
	"bootstrap-tokens":   "bootstrap-token-controller",
	"kubernetes-service": "kubernetes-service-controller",
	"service-repair":     "service-ip-repair-controller",
}

// DisableControllers returns a list in the syntax of Config.Controllers that disables the named
// controllers and otherwise equals list.
func DisableControllers(list []string, names ...string) []string {
	out := make([]string, 0, len(names)+len(list))
	for _, name := range names {
		out = append(out, "-"+name)
	}
	return append(out, list...)
}

// controllerEnabled reports whether a list in the syntax of Config.Controllers enables the named
// controller. As in kube-controller-manager, the first entry that names the controller wins, and
// "*" applies to the controllers that the list does not name.
func controllerEnabled(list []string, name string) bool {
	all := false
	for _, entry := range list {
		entryName, disabled := strings.CutPrefix(entry, "-")
		if entry == allControllers {
			all = true
		} else if currentControllerName(entryName) == name {
			return !disabled
		}
	}
	return all
}

// ControllerEnabled reports whether the configuration enables the named controller.
func (c *Config) ControllerEnabled(name string) bool { return controllerEnabled(c.Controllers, name) }

// ControllerNames returns the names that Config.Controllers accepts.
func ControllerNames() []string {
	var names []string
	for _, p := range (&Assembly{}).controllers() {
		names = append(names, p.Name)
	}
	return names
}

// validateControllers returns an error if the list contains an unknown name.
func validateControllers(list, known []string) error {
	for _, entry := range list {
		if entry == allControllers {
			continue
		}
		name := strings.TrimPrefix(entry, "-")
		if !slices.Contains(known, currentControllerName(name)) {
			return fmt.Errorf("controllers: %q is not a known controller; known controllers: %s",
				name, strings.Join(known, ", "))
		}
	}
	return nil
}

// currentControllerName replaces a deprecated name.
func currentControllerName(name string) string {
	if current, ok := deprecatedControllerNames[name]; ok {
		return current
	}
	return name
}

// warnDeprecatedControllers logs a warning for each deprecated name in Config.Controllers.
func (c *Config) warnDeprecatedControllers() {
	for _, entry := range c.Controllers {
		name := strings.TrimPrefix(entry, "-")
		if current, ok := deprecatedControllerNames[name]; ok {
			c.Log.Warn("controller name deprecated", "controller", name, "use", current)
		}
	}
}
