package hosts

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// command runs a program and returns what it prints.
func command(name string, args ...string) (string, error) {
	cmd := exec.Command(name, args...)
	var errs bytes.Buffer
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, strings.TrimSpace(errs.String()))
	}
	return string(out), nil
}

// makeBridge makes the bridge before the first pod does, so that the host has an
// address that is not loopback from the start.
func (r *record) makeBridge() error {
	if err := os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0o644); err != nil {
		return err
	}
	for _, args := range [][]string{
		{"link", "add", r.bridge(), "type", "bridge"},
		{"addr", "add", fmt.Sprintf("%s/%d", r.gateway(), r.PodCIDR.Bits()), "dev", r.bridge()},
		{"link", "set", r.bridge(), "up"},
	} {
		if _, err := command("ip", args...); err != nil {
			return err
		}
	}
	return nil
}

// links lists the host's bridge and what is plugged into it.
func (r *record) links() []string {
	out := []string{}
	ports, _ := filepath.Glob(filepath.Join("/sys/class/net", r.bridge(), "brif", "*"))
	for _, p := range ports {
		out = append(out, filepath.Base(p))
	}
	if _, err := os.Stat(filepath.Join("/sys/class/net", r.bridge())); err == nil {
		out = append(out, r.bridge())
	}
	return out
}

func (r *record) removeLinks() error {
	var errs error
	for _, l := range r.links() {
		// A port goes by itself with its network namespace, perhaps just now.
		if _, err := command("ip", "link", "del", l); err != nil {
			if _, gone := os.Stat("/sys/class/net/" + l); gone == nil {
				errs = errors.Join(errs, err)
			}
		}
	}
	return errs
}

// rules lists the nat rules that the plugins made for the host's pods, and the
// chains of single pods that they fill or lead to. The plugins name network and
// sandbox in a comment of every rule but those inside a host port's chain.
func (r *record) rules() (rules, chains []string) {
	out, err := command("iptables-save", "-t", "nat")
	if err != nil {
		return nil, nil
	}
	mark := fmt.Sprintf(`name: \"%s\"`, r.network())
	known := map[string]bool{}
	for line := range strings.Lines(out) {
		line = strings.TrimSpace(line)
		if !strings.HasPrefix(line, "-A ") || !strings.Contains(line, mark) {
			continue
		}
		rules = append(rules, line)
		f := strings.Fields(line)
		for _, chain := range []string{f[1], f[len(f)-1]} {
			if isPodChain(chain) && !known[chain] {
				known[chain] = true
				chains = append(chains, chain)
			}
		}
	}
	return rules, chains
}

// isPodChain tells the chain of one sandbox from those that all share.
func isPodChain(chain string) bool {
	return !isSharedChain(chain) && strings.HasPrefix(chain, "CNI-") && len(chain) > 10
}

func isSharedChain(chain string) bool {
	return strings.HasPrefix(chain, "CNI-HOSTPORT-")
}

func (r *record) removeRules() error {
	rules, chains := r.rules()
	if len(rules) == 0 {
		return nil
	}
	var b strings.Builder
	b.WriteString("*nat\n")
	inside := func(rule string) bool {
		return isPodChain(strings.Fields(rule)[1])
	}
	for _, c := range chains {
		fmt.Fprintf(&b, "-F %s\n", c)
	}
	for _, rule := range rules {
		if !inside(rule) {
			fmt.Fprintf(&b, "-D %s\n", strings.TrimPrefix(rule, "-A "))
		}
	}
	for _, c := range chains {
		fmt.Fprintf(&b, "-X %s\n", c)
	}
	b.WriteString("COMMIT\n")
	return iptablesRestore(b.String())
}

func iptablesRestore(text string) error {
	cmd := exec.Command("iptables-restore", "--noflush", "--wait")
	cmd.Stdin = strings.NewReader(text)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("iptables-restore: %w: %s\n%s", err, out, text)
	}
	return nil
}

// removeSharedChains takes away what the port mapping plugin makes once per
// machine. Only the last host does so, and only when nothing leads through them.
func removeSharedChains() error {
	out, err := command("iptables-save", "-t", "nat")
	if err != nil || !strings.Contains(out, "CNI-HOSTPORT-") {
		return err
	}
	var flush, leave, drop strings.Builder
	for line := range strings.Lines(out) {
		line = strings.TrimSpace(line)
		f := strings.Fields(line)
		switch {
		case strings.HasPrefix(line, ":CNI-HOSTPORT-"):
			chain := strings.TrimPrefix(f[0], ":")
			fmt.Fprintf(&flush, "-F %s\n", chain)
			fmt.Fprintf(&drop, "-X %s\n", chain)
		case strings.HasPrefix(line, "-A CNI-HOSTPORT-DNAT") && strings.Contains(line, "CNI-DN-"):
			return nil // somebody else's host port
		case strings.HasPrefix(line, "-A ") && !strings.HasPrefix(line, "-A CNI-") && isSharedChain(f[len(f)-1]):
			fmt.Fprintf(&leave, "-D %s\n", strings.TrimPrefix(line, "-A "))
		}
	}
	return iptablesRestore("*nat\n" + leave.String() + flush.String() + drop.String() + "COMMIT\n")
}

// removeEmptyChains takes away the chains of single pods that a plugin left when
// it was killed between its steps: nothing is in them and nothing leads to them,
// so that nobody can tell whose they were. Only the last host does so.
func removeEmptyChains() error {
	out, err := command("iptables-save", "-t", "nat")
	if err != nil {
		return err
	}
	empty, used := []string{}, map[string]bool{}
	for line := range strings.Lines(out) {
		f := strings.Fields(line)
		switch {
		case strings.HasPrefix(line, ":") && isPodChain(f[0][1:]):
			empty = append(empty, f[0][1:])
		case strings.HasPrefix(line, "-A "):
			used[f[1]], used[f[len(f)-1]] = true, true
		}
	}
	var b strings.Builder
	for _, chain := range empty {
		if !used[chain] {
			fmt.Fprintf(&b, "-X %s\n", chain)
		}
	}
	if b.Len() == 0 {
		return nil
	}
	return iptablesRestore("*nat\n" + b.String() + "COMMIT\n")
}

// cniCache lists what libcni remembers of attachments to the host's network and
// of the loopbacks of its sandboxes, which say where the namespace was pinned.
func (r *record) cniCache() []string {
	out, _ := filepath.Glob(filepath.Join("/var/lib/cni/results", r.network()+"-*"))
	lo, _ := filepath.Glob("/var/lib/cni/results/cni-loopback-*")
	for _, f := range lo {
		if text, err := os.ReadFile(f); err == nil && strings.Contains(string(text), `"`+r.state()+"/") {
			out = append(out, f)
		}
	}
	return out
}

// addressesInUse lists the addresses that host-local has given out.
func (r *record) addressesInUse() []string {
	files, _ := filepath.Glob(filepath.Join(r.addresses(), r.network(), "*"))
	var out []string
	for _, f := range files {
		if name := filepath.Base(f); name != "lock" && !strings.HasPrefix(name, "last_reserved_ip") {
			out = append(out, name)
		}
	}
	return out
}
